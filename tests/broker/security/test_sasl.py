"""SASL on the wire: what a client may send before it is authenticated, in which order, and for how long."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.protocol.scram import ScramMechanism
from headrace.testing import EmbeddedBroker
from tests.broker.processes import wait_until
from tests.broker.security.brokers import ADMIN, PASSWORD, create_admin, secure_broker
from tests.broker.security.scram_client import client_final
from tests.broker.wire_client import METADATA, ConnectionEnded, WireClient, frame, pack_request

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
SHA_256 = ScramMechanism.SHA_256
FIRST = f"n,,n={ADMIN},r=abc".encode()
ALL = {"sasl_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sasl") / "data"
    create_admin(folder)
    return folder


@pytest.fixture(scope="module")
def kafka(data: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(data, "SASL_PLAINTEXT", settings=ALL | {"max_unauthenticated": 5}) as running:
        yield running


@pytest.fixture
def client(kafka: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(kafka.bootstrap) as client:
        yield client


def choose(client: WireClient, mechanism: str = "SCRAM-SHA-256") -> Any:
    return client.ask(HANDSHAKE, 1, mechanism=mechanism)


def send_token(client: WireClient, token: bytes, version: int = 2) -> Any:
    return client.ask(AUTHENTICATE, version, auth_bytes=token)


def log_in(client: WireClient, user: str = ADMIN, password: str = PASSWORD) -> Any:
    assert choose(client).error_code is ErrorCode.none
    bare = f"n={user},r=abc"
    challenge = send_token(client, f"n,,{bare}".encode()).auth_bytes
    return send_token(client, client_final(SHA_256, password, bare, challenge))


def can_ask(client: WireClient) -> bool:
    return (
        client.ask(
            METADATA,
            9,
            topics=[],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        ).cluster_id
        is not None
    )


def test_a_client_with_the_right_password_is_served(client: WireClient) -> None:
    answer = log_in(client)
    assert (answer.error_code, answer.session_lifetime.total_seconds()) == (ErrorCode.none, 0)
    assert can_ask(client)


def test_the_versions_are_told_before_authentication(client: WireClient) -> None:
    served = {item.api_key: item.max_version for item in client.ask(API_VERSIONS, 0).api_keys}
    assert (served[HANDSHAKE], served[AUTHENTICATE]) == (1, 2)


def test_any_other_request_before_authentication_ends_the_connection(client: WireClient) -> None:
    client.send(METADATA, 1, topics=None)
    assert client.is_ended()


def test_a_request_inside_an_exchange_ends_the_connection(client: WireClient) -> None:
    choose(client)
    send_token(client, FIRST)
    client.send(METADATA, 1, topics=None)
    assert client.is_ended()


def test_an_unknown_mechanism_is_answered_with_those_that_there_are(client: WireClient) -> None:
    answer = choose(client, "GSSAPI")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert client.is_ended()


def test_a_token_before_the_handshake_is_out_of_order(client: WireClient) -> None:
    assert send_token(client, FIRST).error_code is ErrorCode.illegal_sasl_state
    assert client.is_ended()


def test_a_second_handshake_inside_an_exchange_is_out_of_order(client: WireClient) -> None:
    choose(client)
    assert choose(client).error_code is ErrorCode.illegal_sasl_state
    assert client.is_ended()


@pytest.mark.parametrize(("user", "password"), [(ADMIN, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    client: WireClient, user: str, password: str
) -> None:
    answer = log_in(client, user, password)
    assert answer.error_code is ErrorCode.sasl_authentication_failed
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        "SCRAM-SHA-256"
    )
    assert client.is_ended()


def test_a_malformed_token_is_a_failed_authentication(client: WireClient) -> None:
    choose(client)
    assert send_token(client, b"\0\xff").error_code is ErrorCode.sasl_authentication_failed


@pytest.mark.parametrize(
    "token", [b"\0admin\0admin-password", b"admin\0admin\0admin-password"], ids=["no authzid", "the same"]
)
def test_plain_is_checked_against_the_same_users(client: WireClient, token: bytes) -> None:
    choose(client, "PLAIN")
    assert send_token(client, token).error_code is ErrorCode.none
    assert can_ask(client)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0admin\0wrong",
        b"bob\0admin\0admin-password",
        b"\0admin\0",
        b"admin",
        b"\0a\0b\0c",
        b"\0nobody\0x",
    ],
)
def test_a_bad_plain_token_is_refused(client: WireClient, token: bytes) -> None:
    choose(client, "PLAIN")
    assert send_token(client, token).error_code is ErrorCode.sasl_authentication_failed


def test_requests_behind_a_password_that_is_being_checked_are_refused(client: WireClient) -> None:
    choose(client, "PLAIN")
    client.send_bytes(
        client.pack(AUTHENTICATE, 2, auth_bytes=b"\0admin\0wrong") + client.pack(METADATA, 1, topics=None)
    )
    with pytest.raises(ConnectionEnded):
        client.receive()


def test_tokens_without_headers_follow_the_first_version_of_the_handshake(client: WireClient) -> None:
    assert client.ask(HANDSHAKE, 0, mechanism="SCRAM-SHA-256").error_code is ErrorCode.none
    client.send_bytes(frame(FIRST))
    challenge = client.receive_frame()
    client.send_bytes(frame(client_final(SHA_256, PASSWORD, f"n={ADMIN},r=abc", challenge)))
    assert client.receive_frame().startswith(b"v=")
    assert can_ask(client)


def test_a_tiny_token_without_a_header_is_read(client: WireClient) -> None:
    client.ask(HANDSHAKE, 0, mechanism="PLAIN")
    client.send_bytes(frame(b"\0a\0b"))
    assert client.is_ended()


def test_a_large_request_is_refused_before_authentication_and_read_after_it(client: WireClient) -> None:
    log_in(client)
    names = [{"name": "x" * 200} for _ in range(1000)]
    assert len(client.ask(METADATA, 1, topics=names).topics) == 1


@pytest.mark.parametrize("size", [61 * 1024, 2**31 - 1, -1])
def test_a_length_is_not_believed_before_authentication(client: WireClient, size: int) -> None:
    client.send_bytes(struct.pack(">i", size) + bytes(100))
    assert client.is_ended()


def test_an_authenticated_client_may_authenticate_again_with_the_same_user(client: WireClient) -> None:
    log_in(client)
    assert log_in(client).error_code is ErrorCode.none
    assert can_ask(client)


def test_an_authenticated_client_cannot_change_its_mechanism(client: WireClient) -> None:
    log_in(client)
    assert choose(client, "PLAIN").error_code is ErrorCode.unsupported_sasl_mechanism
    assert client.is_ended()


def test_a_failed_re_authentication_ends_the_connection(client: WireClient) -> None:
    log_in(client)
    assert log_in(client, password="wrong").error_code is ErrorCode.sasl_authentication_failed
    assert client.is_ended()


def test_too_many_connections_that_do_not_authenticate_close_the_oldest(kafka: EmbeddedBroker) -> None:
    crowd = [WireClient(kafka.bootstrap) for _ in range(6)]
    try:
        assert crowd[0].is_ended()
        assert log_in(crowd[-1]).error_code is ErrorCode.none
    finally:
        for member in crowd:
            member.close()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=120), max_size=4))
def test_no_bytes_get_past_the_handshake(kafka: EmbeddedBroker, frames: list[bytes]) -> None:
    with WireClient(kafka.bootstrap) as attacker:
        try:
            attacker.send_bytes(b"".join(map(frame, frames)))
            attacker.send_bytes(frame(pack_request(METADATA, 1, _all_topics())))
            assert attacker.is_ended() or attacker.is_ended()
        except ConnectionError:
            pass


def _all_topics() -> Any:
    from kio.schema.metadata.v1.request import MetadataRequest

    return MetadataRequest(topics=None)


def test_a_client_that_never_authenticates_is_closed(
    data: Path, kafka: EmbeddedBroker, tmp_path: Path
) -> None:
    with (
        secure_broker(
            tmp_path / "data", "SASL_PLAINTEXT", settings={"authentication_timeout_ms": 50}
        ) as quick,
        WireClient(quick.bootstrap) as silent,
    ):
        assert silent.is_ended()


def test_a_refusal_comes_after_a_delay(tmp_path: Path) -> None:
    with (
        secure_broker(tmp_path / "data", "SASL_PLAINTEXT", settings={"failed_delay_ms": 300}) as slow,
        WireClient(slow.bootstrap) as client,
    ):
        began = time.monotonic()
        choose(client, "NONE")
        assert time.monotonic() - began >= 0.3


def test_a_session_that_has_expired_ends_with_the_next_request(tmp_path: Path) -> None:
    create_admin(tmp_path / "data")
    lifetime = {"session_lifetime_ms": 1500}
    with (
        secure_broker(tmp_path / "data", "SASL_PLAINTEXT", settings=lifetime) as kafka,
        WireClient(kafka.bootstrap) as client,
    ):
        answer = log_in(client)
        assert 0 < answer.session_lifetime.total_seconds() <= 1.5
        ended = time.monotonic() + 1.6
        wait_until(lambda: time.monotonic() > ended, "the session to expire")
        assert log_in(client).error_code is ErrorCode.none
        assert can_ask(client)
        ended = time.monotonic() + 1.6
        wait_until(lambda: time.monotonic() > ended, "the session to expire")
        client.send(METADATA, 1, topics=None)
        assert client.is_ended()


def test_a_listener_without_sasl_says_so(tmp_path: Path) -> None:
    with secure_broker(tmp_path / "data", "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        assert choose(client).error_code is ErrorCode.illegal_sasl_state
        assert send_token(client, FIRST).error_code is ErrorCode.illegal_sasl_state
        assert can_ask(client)
