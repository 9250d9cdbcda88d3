"""TLS: real clients, large records, hostile handshakes, renewed certificates, client certificates."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.broker.listeners import InvalidSetting, Listener, Protocol
from headrace.broker.security.certificates import (
    NoMatchingRule,
    PrincipalMapper,
    TlsContexts,
    distinguished_name,
)
from headrace.broker.security.settings import ClientAuth, SecuritySettings
from headrace.testing import EmbeddedBroker
from tests.behavior.clients.pykafka import kafka as kafka_python
from tests.broker.processes import wait_until
from tests.broker.security.brokers import (
    ADMIN,
    PASSWORD,
    Authority,
    connection_error,
    create_admin,
    sasl_config,
    secure_broker,
)
from tests.broker.wire_client import METADATA, PRODUCE, WireClient, batch_of, frame

MEGABYTE = 2**20
RULES = "RULE:^.*CN=([^,]*).*$/$1/L, DEFAULT"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def kafka(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with a listener of each protocol: SASL_SSL, SSL, PLAINTEXT."""
    data = tmp_path_factory.mktemp("tls") / "data"
    create_admin(data)
    security = {
        "certificate": authority.issue("broker"),
        "sasl_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
        "super_users": frozenset({"User:ANONYMOUS"}),
    }
    with secure_broker(data, "SASL_SSL", "SSL", "PLAINTEXT", settings=security) as running:
        yield running


def tls_config(running: EmbeddedBroker, authority: Authority, **more: Any) -> dict[str, Any]:
    more = {"security_protocol": "SASL_SSL", "ssl_ca_location": str(authority.ca_file)} | more
    return sasl_config(running, **more)


class TlsClient(WireClient):
    """The same client over TLS."""

    def __init__(
        self, address: str, authority: Authority, certificate: Path | None = None, **more: Any
    ) -> None:
        super().__init__(address, **more)
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        except BaseException:
            self.socket.close()
            raise


@pytest.fixture
def client(kafka: EmbeddedBroker, authority: Authority) -> Iterator[TlsClient]:
    with TlsClient(kafka.bootstraps[1], authority) as client:
        yield client


def test_records_are_written_and_read_with_confluent_kafka(
    kafka: EmbeddedBroker, authority: Authority
) -> None:
    producer = Producer(tls_config(kafka, authority))
    values = [bytes([number]) * 300_000 for number in range(20)]
    for value in values:
        producer.produce("confluent", value)
    assert producer.flush(30) == 0
    consumer = Consumer(tls_config(kafka, authority, group_id="shop", auto_offset_reset="earliest"))
    consumer.subscribe(["confluent"])
    try:
        assert [consumer.poll(30).value() for _ in values] == values
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_records_are_written_and_read_with_kafka_python(
    kafka: EmbeddedBroker, authority: Authority, mechanism: str
) -> None:
    config = {
        "bootstrap_servers": kafka.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(authority.ca_file),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": ADMIN,
        "sasl_plain_password": PASSWORD,
    }
    producer = kafka_python.KafkaProducer(**config)
    producer.send(mechanism, b"tea").get(30)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        mechanism, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **config
    )
    assert next(consumer).value == b"tea"
    consumer.close()


def test_records_are_written_and_read_with_aiokafka(kafka: EmbeddedBroker, authority: Authority) -> None:
    async def write_and_read() -> bytes:
        config = {
            "bootstrap_servers": kafka.bootstraps[1],
            "security_protocol": "SSL",
            "ssl_context": create_ssl_context(cafile=str(authority.ca_file)),
        }
        async with AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait("aio", b"tea")
        async with AIOKafkaConsumer("aio", auto_offset_reset="earliest", **config) as consumer:
            return bytes((await consumer.getone()).value)

    assert asyncio.run(write_and_read()) == b"tea"


def test_clients_are_told_the_address_of_their_own_listener(kafka: EmbeddedBroker, client: TlsClient) -> None:
    (broker,) = client.ask(METADATA, 1, topics=[]).brokers
    assert f"{broker.host}:{broker.port}" == kafka.bootstraps[1]
    with WireClient(kafka.bootstraps[2]) as plain:
        (broker,) = plain.ask(METADATA, 1, topics=[]).brokers
        assert f"{broker.host}:{broker.port}" == kafka.bootstraps[2]


def test_large_requests_and_responses_pass_whole(client: TlsClient) -> None:
    # The records of a test are years old.
    client.create_topic("large", max_message_bytes=str(32 * MEGABYTE), retention_ms="-1")
    value = b"".join(number.to_bytes(4) for number in range(2 * MEGABYTE))
    assert client.produce("large", batch_of(value)).error_code is ErrorCode.none
    (topic,) = client.fetch({("large", 0): 0}, partition_bytes=32 * MEGABYTE).responses
    assert topic.partitions[0].error_code is ErrorCode.none
    assert topic.partitions[0].records[-len(value) - 1 : -1] == value


def test_a_slow_reader_gets_everything_in_the_end(
    kafka: EmbeddedBroker, authority: Authority, client: TlsClient
) -> None:
    client.create_topic("slow")
    values = [bytes([number]) * 100_000 for number in range(40)]
    for value in values:
        client.produce("slow", batch_of(value))
    with TlsClient(kafka.bootstraps[1], authority, receive_bytes=4096) as slow:
        for offset in range(40):
            slow.send_fetch({("slow", 0): offset}, partition_bytes=1)
            slow.send(METADATA, 1, topics=[{"name": "slow"}])
        for value in values:
            (topic,) = slow.receive().responses
            assert topic.partitions[0].records[-len(value) - 1 : -1] == value
            assert slow.receive().topics[0].name == "slow"


def test_many_small_requests_in_one_piece_are_all_answered(client: TlsClient) -> None:
    client.send_bytes(b"".join(client.pack(METADATA, 1, topics=[{"name": f"t{n % 3}"}]) for n in range(900)))
    assert [client.receive().topics[0].name for _ in range(900)] == [f"t{n % 3}" for n in range(900)]


@pytest.mark.parametrize("left", [1, 10_000, 40_000, 200_000])
@pytest.mark.parametrize("record_bytes", [1_000, 2**20])
def test_the_end_of_a_large_request_may_come_late(
    kafka: EmbeddedBroker, client: TlsClient, left: int, record_bytes: int
) -> None:
    topic = f"late-{left}-{record_bytes}"
    client.create_topic(topic, retention_ms="-1")
    fields = {"name": topic, "partition_data": [{"index": 0, "records": batch_of(b"x" * 900_000)}]}
    request = client.pack(
        PRODUCE, 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=[fields]
    ) + client.pack(METADATA, 1, topics=[{"name": topic}])
    for start in range(0, len(request) - left, record_bytes):  # a TLS record for each, as librdkafka does
        client.send_bytes(request[start : min(start + record_bytes, len(request) - left)])
    with WireClient(kafka.bootstraps[2]) as plain:
        plain.ask(METADATA, 1, topics=[])  # the broker has nothing else to read
    client.send_bytes(request[-left:])
    assert client.receive().responses[0].partition_responses[0].error_code is ErrorCode.none
    assert client.receive().topics[0].name == topic


def test_a_request_may_arrive_one_byte_at_a_time(client: TlsClient) -> None:
    for byte in client.pack(METADATA, 1, topics=[{"name": "orders"}]):
        client.send_bytes(bytes([byte]))
    assert client.receive().topics[0].name == "orders"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=600))
def test_no_bytes_get_past_the_handshake_without_tls(kafka: EmbeddedBroker, data: bytes) -> None:
    with WireClient(kafka.bootstraps[1]) as attacker:
        with contextlib.suppress(OSError):
            attacker.send_bytes(data + frame(bytes(20)))
            attacker.socket.shutdown(socket.SHUT_WR)
        read_alerts(attacker)
    with WireClient(kafka.bootstraps[2]) as other:
        assert other.ask(METADATA, 1, topics=[{"name": "orders"}]).topics


def read_alerts(client: WireClient) -> None:
    """Read to the end of a connection: the broker sends no more than an alert of TLS."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := client.socket.recv(4096):
            received += data
    assert len(received) < 10


def test_a_plain_client_on_a_tls_listener_is_closed(kafka: EmbeddedBroker) -> None:
    with WireClient(kafka.bootstraps[1]) as plain:
        plain.send(METADATA, 1, topics=None)
        read_alerts(plain)


def test_half_open_and_slow_handshakes_are_closed_and_disturb_nobody(
    authority: Authority, tmp_path: Path
) -> None:
    security = {"certificate": authority.issue("quick"), "authentication_timeout_ms": 500}
    with secure_broker(tmp_path / "data", "SSL", settings=security) as quick:
        silent, half = WireClient(quick.bootstrap), WireClient(quick.bootstrap)
        with silent, half:
            half.send_bytes(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            with TlsClient(quick.bootstrap, authority) as client:
                assert client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics
                assert silent.is_ended()
                assert half.is_ended()
                assert client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics


def test_old_protocols_are_refused(kafka: EmbeddedBroker, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with WireClient(kafka.bootstraps[1]) as client, pytest.raises(ssl.SSLError):
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")


def test_a_client_that_does_not_trust_the_certificate_is_told_so(
    kafka: EmbeddedBroker, tmp_path: Path
) -> None:
    assert connection_error(tls_config(kafka, Authority(tmp_path))) == "_SSL"


def serial_number(address: str, authority: Authority) -> str:
    with TlsClient(address, authority) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        return str((client.socket.getpeercert() or {})["serialNumber"])


def test_a_renewed_certificate_is_used_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    file = authority.issue("renewed")
    with (
        secure_broker(tmp_path / "data", "SSL", settings={"certificate": file}) as kafka,
        TlsClient(kafka.bootstrap, authority) as old,
    ):
        first = serial_number(kafka.bootstrap, authority)
        authority.issue("renewed")
        wait_until(lambda: serial_number(kafka.bootstrap, authority) != first, "the new certificate")
        assert old.ask(METADATA, 1, topics=[{"name": "orders"}]).topics


def test_a_bad_certificate_leaves_the_old_one_in_use(authority: Authority) -> None:
    now = 0.0
    file = authority.issue("spoiled")
    contexts = TlsContexts(SecuritySettings(certificate=file), ClientAuth.NONE, now=lambda: now)
    first = contexts.context
    file.write_text("no certificate")
    now = 5.0
    assert contexts.context is first
    authority.issue("spoiled")
    now = 10.0
    assert contexts.context is not first


def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for name in ("bad.pem", "missing.pem"):
        security = {"certificate": tmp_path / name}
        with pytest.raises(InvalidSetting, match=f"{name} cannot be used"):
            secure_broker(tmp_path / "data", "SSL", settings=security).__enter__()
    with secure_broker(tmp_path / "data", "PLAINTEXT"):
        pass  # the folder is free


def test_an_encrypted_private_key_needs_its_password(authority: Authority, tmp_path: Path) -> None:
    certificate = authority.issue("encrypted")
    password = tmp_path / "password"
    password.write_text("tea-and-cups\n")
    key = load_pem_private_key(certificate.read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encryption = BestAvailableEncryption(b"tea-and-cups")
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    security: dict[str, Any] = {"certificate": certificate, "private_key": encrypted}
    with pytest.raises(InvalidSetting, match=r"key is encrypted: name .*--tls-key-password-file"):
        secure_broker(tmp_path / "data", "SSL", settings=security).__enter__()
    security["private_key_password"] = password
    with secure_broker(tmp_path / "data", "SSL", settings=security) as kafka:
        admin = AdminClient(
            {
                "bootstrap.servers": kafka.bootstrap,
                "security.protocol": "SSL",
                "ssl.ca.location": str(authority.ca_file),
            }
        )
        assert len(admin.list_topics(timeout=30).brokers) == 1
    password.write_text("wrong\n")
    with pytest.raises(InvalidSetting, match="cannot be used"):
        secure_broker(tmp_path / "data", "SSL", settings=security).__enter__()


# ---------------------------------------------------------------- client certificates


@pytest.fixture
def mutual(authority: Authority, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    security = {
        "certificate": authority.issue("broker"),
        "client_ca": authority.ca_file,
        "client_auth": ClientAuth.REQUIRED,
        "principal_mapping_rules": RULES,
        "super_users": frozenset({"User:alice"}),
    }
    with secure_broker(tmp_path / "data", "SSL", settings=security) as running:
        yield running


def test_a_client_with_a_certificate_is_served(mutual: EmbeddedBroker, authority: Authority) -> None:
    certificate = authority.issue("alice", "alice.example.com", common_name="Alice")
    with TlsClient(mutual.bootstrap, authority, certificate) as client:
        assert client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics[0].error_code is ErrorCode.none
    producer = Producer(
        {
            "bootstrap.servers": mutual.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.ca_file),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
        }
    )
    producer.produce("orders", b"tea")
    assert producer.flush(30) == 0


@pytest.mark.parametrize("stranger", [False, True], ids=["none", "of another authority"])
def test_a_client_without_a_trusted_certificate_is_refused(
    mutual: EmbeddedBroker, authority: Authority, tmp_path: Path, stranger: bool
) -> None:
    certificate = Authority(tmp_path / "other").issue("eve", "eve.example.com") if stranger else None
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask_for_topics(mutual.bootstrap, authority, certificate)


def ask_for_topics(address: str, authority: Authority, certificate: Path | None) -> None:
    with TlsClient(address, authority, certificate) as client:
        client.send(METADATA, 1, topics=None)
        client.socket.recv(1)


def test_a_name_that_no_rule_maps_is_refused(authority: Authority, tmp_path: Path) -> None:
    security = {
        "certificate": authority.issue("broker"),
        "client_ca": authority.ca_file,
        "client_auth": ClientAuth.REQUIRED,
        "principal_mapping_rules": "RULE:^CN=shop$/shop/",
    }
    certificate = authority.issue("bob", "bob.example.com", common_name="bob")
    with (
        secure_broker(tmp_path / "data", "SSL", settings=security) as kafka,
        TlsClient(kafka.bootstrap, authority, certificate) as client,
    ):
        client.send(METADATA, 1, topics=None)
        assert client.is_ended()


def test_a_distinguished_name_is_written_as_java_writes_it() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "Tea, Ltd"),), (("commonName", "Alice"),))
    assert distinguished_name({"subject": subject}) == "CN=Alice,O=Tea\\, Ltd,C=DE"


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=kafka,OU=ops", "CN=kafka,OU=ops"),
        ("", "CN=kafka", "CN=kafka"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=x", "kafka"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L", "CN=Kafka,OU=Ops", "kafka@ops"),
        ("RULE:^cn=(.*)$/$1/, RULE:^CN=(.*)$/$1/U , DEFAULT", "CN=kafka", "KAFKA"),
        (r"RULE:^CN=a\/(.*)$/x-$1/", "CN=a/b", "x-b"),
        (r"RULE:.*/a\\b/", "CN=x", r"a\\b"),
    ],
)
def test_the_first_rule_that_matches_maps_a_name(rules: str, name: str, user: str) -> None:
    assert PrincipalMapper(rules).user(name) == user


def test_a_name_without_a_rule_has_no_user() -> None:
    with pytest.raises(NoMatchingRule):
        PrincipalMapper("RULE:^CN=a$/a/").user("CN=b")


@pytest.mark.parametrize("rules", ["RULE:a", "RULE:(/b/", "RULE:a/$1/", "default", "RULE:a/b/X"])
def test_a_bad_rule_is_an_invalid_setting(rules: str) -> None:
    with pytest.raises(InvalidSetting):
        PrincipalMapper(rules)


# ---------------------------------------------------------------- addresses


def listen_on(address: str, **more: Any) -> None:
    from headrace.broker.config import BrokerConfig
    from headrace.broker.listeners import parse_listeners

    BrokerConfig(
        listeners=parse_listeners([address], more.pop("advertise", ())), security=SecuritySettings(**more)
    )


def test_other_addresses_than_loopback_need_authentication(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    required = {"client_auth": ClientAuth.REQUIRED, "client_ca": file}
    listen_on("SASL_SSL://192.168.1.5:9093", certificate=file)
    listen_on("SSL://192.168.1.5:9093", certificate=file, **required)
    listen_on("SASL_PLAINTEXT://192.168.1.5:9093")
    listen_on("SASL_SSL://0.0.0.0:9093", certificate=file, advertise=["kafka.example.com:9093"])
    for address, more in (
        ("192.168.1.5:9092", {}),
        ("SSL://192.168.1.5:9093", {"certificate": file}),
        ("SSL://192.168.1.5:9093", required | {"certificate": file, "client_auth": ClientAuth.REQUESTED}),
    ):
        with pytest.raises(InvalidSetting, match="without authentication"):
            listen_on(address, **more)
    with pytest.raises(InvalidSetting, match="--advertise SASL_SSL://NAME:9093"):
        listen_on("SASL_SSL://0.0.0.0:9093", certificate=file)
    with pytest.raises(InvalidSetting, match="needs a certificate"):
        listen_on("SASL_SSL://192.168.1.5:9093")


def test_an_address_is_advertised_for_the_listener_of_its_protocol() -> None:
    from headrace.broker.listeners import parse_listeners

    listeners = parse_listeners(
        ["SASL_SSL://0.0.0.0:9093", "127.0.0.1:0", "SSL://[::1]:9094"], ["sasl_ssl://kafka.example.com:0"]
    )
    assert [str(listener.endpoint(1)) for listener in listeners] == [
        "kafka.example.com:1",
        "127.0.0.1:1",
        "[::1]:1",
    ]
    assert listeners[1] == Listener(protocol=Protocol.PLAINTEXT, host="127.0.0.1", port=0)
    for bad in ("9092", "HTTP://a:1", "a:b", "a:99999"):
        with pytest.raises(InvalidSetting):
            parse_listeners([bad], ())
    with pytest.raises(InvalidSetting, match="must name one listener"):
        parse_listeners(["a:1", "b:2"], ["c:3"])


def test_plain_is_not_offered_where_others_could_listen() -> None:
    remote = Listener(protocol=Protocol.SASL_PLAINTEXT, host="192.168.1.5", port=1)
    assert not remote.is_private
    assert Listener(protocol=Protocol.SASL_SSL, host="192.168.1.5", port=1).is_private
    assert Listener(protocol=Protocol.SASL_PLAINTEXT, host="127.0.0.1", port=1).is_private
