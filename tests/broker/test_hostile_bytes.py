"""Invalid bytes: the broker responds or closes the connection, uses no more memory, and serves other clients.

Taken as cases: allocation before a length is believed (CVE-2022-34917), and what the readers of other brokers
were caught by: counts, tags and varints that lie.
"""

import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.broker.apis import APIS
from headrace.protocol.wire import pack_unsigned_varint
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import (
    FETCH,
    METADATA,
    PRODUCE,
    WireClient,
    batch_of,
    frame,
    pack_request,
    read_response,
)
from tests.protocol.entities import INT32_MAX, requests, scalars

JOIN_GROUP, SYNC_GROUP, OFFSET_FETCH, DESCRIBE_GROUPS = 11, 14, 9, 15
MEGABYTE = 2**20
MEMORY_LIMIT = 64 * MEGABYTE
"""What one hostile connection may cost beyond the bytes that it has really sent."""
TIMESTAMP = 1_700_000_000_000
BATCH = batch_of(b"tea", b"cup")
EVERY_VERSION = [(key, version) for key, api in APIS.items() for version in range(api.low, api.high + 1)]
MAY_WAIT = {JOIN_GROUP, SYNC_GROUP}
"""APIs whose answer may take as long as a rebalance."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for the whole module: whatever a test has done to it, the next one meets."""
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data", "--metrics", "0") as kafka:
        yield kafka
        assert kafka.is_running
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]


@pytest.fixture
def client(kafka: BrokerProcess) -> Iterator[WireClient]:
    """A well-behaved client, with a topic whose name no request in these tests is made of."""
    with WireClient(kafka.address) as client:
        client.create_topic("steady")
        yield client


def header(api_key: int, version: int, *, tags: bytes = b"") -> bytes:
    """The header of a request; tagged fields are given for flexible versions."""
    return struct.pack(">hhih", api_key, version, 1, -1) + tags


# ---------------------------------------------------------------- any request at all


@given(data=st.data(), api=st.sampled_from([pair for pair in EVERY_VERSION if pair[0] not in MAY_WAIT]))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_well_formed_request_is_answered(
    kafka: BrokerProcess, client: WireClient, data: st.DataObject, api: tuple[int, int]
) -> None:
    api_key, version = api
    types = scalars([-1, 0, 1, 50], [b"", b"no batch", BATCH])
    request = data.draw(requests(api_key, version, types))
    if api_key == PRODUCE and request.acks == 0:
        return  # no response is expected
    with WireClient(kafka.address) as stranger:
        stranger.send_bytes(frame(pack_request(api_key, version, request, 77)))
        assert read_response(api_key, version, stranger.receive_frame())[0] == 77


mutations = st.sampled_from(["cut", "cut inside", "bits", "int32", "varint", "insert", "shuffle"])
HOSTILE_NUMBERS = (0, -1, -2, INT32_MAX, -INT32_MAX - 1, 65_535, 1_000_000, 100 * MEGABYTE)


def mutate(payload: bytes, kind: str, seed: int) -> bytes:
    """A frame that is nearly the request in `payload`."""
    chance = random.Random(seed)
    data = bytearray(payload)
    at = chance.randrange(len(data))
    if kind == "cut":
        return struct.pack(">i", len(data)) + bytes(data[:at])
    if kind == "cut inside":
        del data[max(at, 8) :]
    elif kind == "bits":
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "int32" and len(data) > 14:
        struct.pack_into(">i", data, chance.randrange(8, len(data) - 4), chance.choice(HOSTILE_NUMBERS))
    elif kind == "varint":
        data[at:at] = pack_unsigned_varint(chance.choice([2**32 - 1, 2**31, 2**28, 129]))
    elif kind == "insert":
        data[at:at] = chance.randbytes(chance.randint(1, 64))
    elif kind == "shuffle":
        tail = list(data[8:])
        chance.shuffle(tail)
        data[8:] = bytes(tail)
    return frame(bytes(data))


@given(
    data=st.data(),
    api=st.sampled_from(EVERY_VERSION),
    changes=st.lists(st.tuples(mutations, st.integers(0, 2**32)), min_size=8, max_size=8),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_that_are_damaged_on_their_way_disturb_nobody(
    kafka: BrokerProcess,
    client: WireClient,
    data: st.DataObject,
    api: tuple[int, int],
    changes: list[tuple[str, int]],
) -> None:
    request = pack_request(*api, data.draw(requests(*api, scalars([0, 1, INT32_MAX], [b"", BATCH]))))
    for kind, seed in changes:
        with WireClient(kafka.address) as stranger:
            stranger.send_bytes(mutate(request, kind, seed))
    assert client.produce("steady", BATCH).error_code is ErrorCode.none


@given(noise=st.binary(min_size=1, max_size=400))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_disturbs_nobody(kafka: BrokerProcess, client: WireClient, noise: bytes) -> None:
    for sent in (noise, frame(noise)):
        with WireClient(kafka.address) as stranger:
            stranger.send_bytes(sent)
    assert client.produce("steady", BATCH).error_code is ErrorCode.none


def test_others_produce_and_consume_in_order_while_the_noise_goes_on(
    kafka: BrokerProcess, client: WireClient
) -> None:
    client.create_topic("quiet")
    is_over = threading.Event()

    def rage() -> None:
        chance = random.Random(4)
        request = pack_request(*EVERY_VERSION[0], build_produce())
        while not is_over.is_set():
            with WireClient(kafka.address) as stranger:
                try:
                    stranger.send_bytes(chance.randbytes(chance.randint(1, 5000)))
                    stranger.send_bytes(mutate(request, "int32", chance.randrange(2**32)))
                except ConnectionError:
                    continue  # disconnected within a request: the case under test

    threads = [threading.Thread(target=rage) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(300):
            assert client.produce("quiet", batch_of(b"%d" % number)).base_offset == number
            (topic,) = client.fetch({("quiet", 0): number}, max_wait=10_000).responses
            assert topic.partitions[0].high_watermark == number + 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def build_produce() -> object:
    from kio.index import load_request_schema

    from tests.protocol.entities import build

    partition = {"index": 0, "records": BATCH}
    topics = [{"name": "orders", "partition_data": [partition]}]
    fields = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": topics}
    return build(load_request_schema(*EVERY_VERSION[0]), fields)


# ---------------------------------------------------------------- memory

MAX_CANDIDATES = {
    "2 GB in one frame": struct.pack(">i", INT32_MAX) + bytes(100),
    "a negative frame": struct.pack(">i", -1) + bytes(100),
    "a frame without room for a header": frame(b"\0" * 5),
    "2³¹ topics": frame(header(METADATA, 1) + struct.pack(">i", INT32_MAX)),
    "2³² topics": frame(header(METADATA, 12, tags=b"\0") + pack_unsigned_varint(2**32 - 1)),
    "2³² partitions to produce": frame(
        header(PRODUCE, 9, tags=b"\0") + b"\0\0\1\0\0\0\0" + pack_unsigned_varint(2**32 - 1)
    ),
    "2³¹ partitions to fetch": frame(
        header(FETCH, 4) + struct.pack(">iiiib", -1, 0, 0, 0, 0) + struct.pack(">i", INT32_MAX)
    ),
    "2³² tagged fields": frame(header(METADATA, 12, tags=pack_unsigned_varint(2**32 - 1))),
    "a tagged field of 4 GB": frame(header(METADATA, 12, tags=b"\1\0" + pack_unsigned_varint(2**32 - 1))),
    "a number without an end": frame(header(METADATA, 12, tags=b"\xff" * 64)),
    "a name of 2 GB": frame(header(DESCRIBE_GROUPS, 5, tags=b"\0") + b"\2" + pack_unsigned_varint(2**31)),
    "a name of negative length": frame(header(DESCRIBE_GROUPS, 0) + struct.pack(">ih", 1, -5)),
    "a client id longer than its frame": frame(struct.pack(">hhih", METADATA, 1, 1, 30_000) + bytes(8)),
}


@pytest.mark.parametrize("claim", MAX_CANDIDATES)
def test_a_claim_without_the_bytes_for_it_ends_the_connection_and_takes_no_memory(
    kafka: BrokerProcess, client: WireClient, claim: str
) -> None:
    kafka.reset_peak()
    before = kafka.resident_bytes
    with WireClient(kafka.address) as stranger:
        stranger.send_bytes(MAX_CANDIDATES[claim])
        assert stranger.is_ended()
    assert client.produce("steady", BATCH).error_code is ErrorCode.none
    assert kafka.peak_bytes - before < MEMORY_LIMIT


SWARMS = {
    "topics without names": header(PRODUCE, 3)
    + struct.pack(">hhii", -1, 1, 1, 2_000_000)
    + b"\xff\xff\0\0\0\0" * 2_000_000,
    "tagged fields in the header": header(
        METADATA, 12, tags=pack_unsigned_varint(5_000_000) + b"\1\0" * 5_000_000
    ),
    "tagged fields of every partition": header(PRODUCE, 9, tags=b"\0")
    + b"\0\0\1\0\0\0\0\2\2t"
    + pack_unsigned_varint(50_001)
    + (b"\0\0\0\0\0" + b"\x64" + b"\1\0" * 100) * 50_000,
    "partitions to fetch": header(FETCH, 4)
    + struct.pack(">iiiibi", -1, 0, 0, 0, 0, 1)
    + struct.pack(">h1si", 1, b"t", 600_000)
    + struct.pack(">iqi", 0, 0, 1) * 600_000,
    "partitions to look up": header(OFFSET_FETCH, 1)
    + struct.pack(">h1sih1si", 1, b"g", 1, 1, b"t", 2_000_000)
    + bytes(4 * 2_000_000),
    "empty names": header(DESCRIBE_GROUPS, 5, tags=b"\0")
    + pack_unsigned_varint(10_000_001)
    + b"\1" * 10_000_000,
}


@pytest.mark.parametrize("swarm", SWARMS)
def test_millions_of_tiny_items_end_the_connection_before_they_become_objects(
    kafka: BrokerProcess, client: WireClient, swarm: str
) -> None:
    payload = SWARMS[swarm]
    kafka.reset_peak()
    before = kafka.resident_bytes
    with WireClient(kafka.address) as stranger:
        stranger.send_bytes(frame(payload))
        assert stranger.is_ended()
    assert client.produce("steady", BATCH).error_code is ErrorCode.none
    # The frame itself has arrived, in a buffer that grew by doubling.
    assert kafka.peak_bytes - before < 4 * len(payload) + MEMORY_LIMIT


def test_two_hundred_connections_that_claim_100_megabytes_take_what_they_send(
    kafka: BrokerProcess, client: WireClient
) -> None:
    kafka.reset_peak()
    before = kafka.resident_bytes
    strangers = [WireClient(kafka.address) for _ in range(200)]
    for stranger in strangers:
        stranger.send_bytes(struct.pack(">i", 100 * MEGABYTE) + b"0123456789")
    assert client.produce("steady", BATCH).error_code is ErrorCode.none
    assert kafka.peak_bytes - before < MEMORY_LIMIT
    for stranger in strangers:
        stranger.close()


# ---------------------------------------------------------------- names

EVIL_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "nul\0",
    "x" * 250,
    "größe",
    "new\nline",
    " ",
    "a b",
]


@pytest.mark.parametrize("name", EVIL_NAMES, ids=repr)
def test_names_that_are_no_topic_names_never_reach_the_file_system(
    kafka: BrokerProcess, client: WireClient, name: str
) -> None:
    before = files_beside(kafka)
    assert client.create_topic(name).error_code is ErrorCode.invalid_topic_exception
    (topic,) = client.ask(METADATA, 9, **metadata_of(name)).topics
    assert topic.error_code is ErrorCode.invalid_topic_exception
    assert client.produce(name, BATCH).error_code is ErrorCode.unknown_topic_or_partition
    (fetched,) = client.fetch({(name, 0): 0}).responses
    assert fetched.partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    assert files_beside(kafka) == before


def files_beside(kafka: BrokerProcess) -> list[Path]:
    """All that is in the broker's folder and around it, without what it writes from time to time anyway.

    That are checkpoints, and the files of partitions: records of old times go, and others take their place.
    """
    partitions = {path for path in kafka.folder.iterdir() if path.is_dir()}
    found = [path for path in kafka.folder.parent.rglob("*") if path.parent not in partitions]
    return sorted(path for path in found if "checkpoint" not in path.name)


def metadata_of(name: str) -> dict[str, object]:
    return {
        "topics": [{"name": name}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


# ---------------------------------------------------------------- sizes


def test_a_request_of_the_largest_size_is_read(client: WireClient) -> None:
    client.create_topic("large", max_message_bytes=str(INT32_MAX))
    batch = batch_of(bytes(99 * MEGABYTE))
    assert client.produce("large", batch).error_code is ErrorCode.none


def test_a_request_above_the_largest_size_ends_the_connection(kafka: BrokerProcess) -> None:
    with WireClient(kafka.address) as stranger:
        stranger.send_bytes(struct.pack(">i", 100 * MEGABYTE + 1))
        assert stranger.is_ended()
