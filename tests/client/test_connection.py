"""The raw client against a real broker, and against peers that do not behave like one."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import pytest
from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.list_transactions.v0 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.metadata.v9 import MetadataRequest, MetadataResponse

from headrace.client.bootstrap import PLAINTEXT, Address, Bootstrap
from headrace.client.cluster import Cluster
from headrace.client.connection import MAX_FRAME_BYTES, Connection
from headrace.client.errors import BadResponse, BrokerUnreachable, ConnectionShared, UnsupportedApi, attempts

LIST_TRANSACTIONS = ListTransactionsRequest(state_filters=(), producer_id_filters=())
VERSIONS = struct.pack(">hihhh", 0, 1, 18, 0, 4)
"""An ApiVersions answer, version 0: no error, and one API, which is ApiVersions itself."""

Answer = Callable[[bytes], bytes]


@contextmanager
def peer(*answers: Answer) -> Iterator[Address]:
    """A server for one connection, which responds to each request, and then disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.sendall(answer(connection.recv(1 << 16)))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address(host="127.0.0.1", port=server.getsockname()[1])
        finally:
            thread.join()


def framed(body: bytes, *, correlation: int | None = None) -> Answer:
    """An answer with `body`, to the request it follows or to another one."""

    def answer(request: bytes) -> bytes:
        asked = struct.unpack_from(">i", request, 8)[0] if correlation is None else correlation
        return struct.pack(">ii", len(body) + 4, asked) + body

    return answer


def open_to(address: Address, profile: str = PLAINTEXT) -> Connection:
    return Connection.open(address.host, address.port, profile=profile, timeout_s=5)


def test_a_broker_is_asked_and_answers(bootstrap: str) -> None:
    found = Bootstrap.of(bootstrap)
    with open_to(found.addresses[0], found.profile) as connection:
        served = connection.request(ApiVersionsRequest(), ApiVersionsResponse)
        assert {api.api_key for api in served.api_keys} >= {0, 1, 3, 18}
        assert connection.serves(MetadataRequest)


def test_a_cluster_names_its_brokers(bootstrap: str) -> None:
    nobody = Address(host="127.0.0.1", port=1)
    found = Bootstrap.of(bootstrap)
    with Cluster([nobody, *found.addresses], profile=found.profile) as cluster:
        assert [broker.port for broker in cluster.brokers()] == [found.addresses[0].port]


def test_a_version_that_is_not_served_is_refused_before_it_is_sent() -> None:
    with peer(framed(VERSIONS)) as address, open_to(address) as connection:
        assert not connection.serves(ListTransactionsRequest)
        with pytest.raises(
            UnsupportedApi, match=r"version 0 of ListTransactions .it does not serve it at all"
        ):
            connection.request(LIST_TRANSACTIONS, ListTransactionsResponse)


def test_nobody_at_the_address_is_explained() -> None:
    with pytest.raises(BrokerUnreachable, match=r"no broker responds at 127\.0\.0\.1:1"):
        Connection.open("127.0.0.1", 1)


def test_a_peer_that_hangs_up_is_explained() -> None:
    with peer(lambda _: b"") as address, pytest.raises(BrokerUnreachable, match="closed the connection"):
        open_to(address)


@pytest.mark.parametrize("size", [-1, 0, MAX_FRAME_BYTES + 1])
def test_a_length_out_of_bounds_allocates_nothing(size: int) -> None:
    with peer(lambda _: struct.pack(">i", size)) as address, pytest.raises(BadResponse, match="speak Kafka"):
        open_to(address)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (framed(VERSIONS, correlation=77), "a response to request 77"),
        (framed(VERSIONS + b"!"), "is followed by 1 bytes"),
        (framed(VERSIONS[:-1]), "cannot be decoded"),
        (framed(struct.pack(">hi", 0, 1 << 30)), "cannot be decoded"),
        (framed(struct.pack(">hi", 9999, 0)), "cannot be decoded"),
        (framed(b""), "cannot be decoded"),
    ],
)
def test_an_answer_that_is_not_one_is_a_fault_of_the_peer(answer: Answer, complaint: str) -> None:
    with peer(answer) as address, pytest.raises(BadResponse, match=complaint):
        open_to(address)


def test_a_connection_that_lost_its_answer_is_closed() -> None:
    versions = struct.pack(">hihhhhhh", 0, 2, 18, 0, 4, 3, 0, 12)
    request = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with peer(framed(versions), lambda _: b"\0\0") as address, open_to(address) as connection:
        for complaint in ("stopped responding: it closed", "stopped responding: "):
            with pytest.raises(BrokerUnreachable, match=complaint):
                connection.request(request, MetadataResponse)


def test_at_least_one_attempt_is_made() -> None:
    assert list(attempts(0.0)) == [1]


def test_attempts_end_with_the_time_allowed() -> None:
    made = list(attempts(0.05))
    assert made == list(range(1, len(made) + 1))
    assert len(made) <= 20
    assert list(attempts(0)) == [1]
    assert list(islice(attempts(3600), 3)) == [1, 2, 3]


def test_a_second_thread_is_refused_and_the_first_one_gets_its_answer() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()
    answer = framed(VERSIONS)

    def slow(request: bytes) -> bytes:
        is_asked.set()
        may_answer.wait(100)
        return answer(request)

    with peer(answer, slow) as address, open_to(address) as connection:
        answers: list[ApiVersionsResponse] = []

        def ask() -> None:
            answers.append(connection.request(ApiVersionsRequest(), ApiVersionsResponse))

        first = threading.Thread(target=ask)
        first.start()
        assert is_asked.wait(100)
        with pytest.raises(ConnectionShared, match="use a Cluster for each thread"):
            connection.request(ApiVersionsRequest(), ApiVersionsResponse)
        may_answer.set()
        first.join()
        assert [api.api_key for response in answers for api in response.api_keys] == [18]


def test_a_connection_may_pass_to_another_thread(bootstrap: str) -> None:
    found = Bootstrap.of(bootstrap)
    with open_to(found.addresses[0], found.profile) as connection, ThreadPoolExecutor(1) as other:
        connection.request(ApiVersionsRequest(), ApiVersionsResponse)
        response = other.submit(connection.request, ApiVersionsRequest(), ApiVersionsResponse)
        assert {api.api_key for api in response.result().api_keys} >= {0, 1, 3, 18}
