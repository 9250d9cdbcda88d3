"""Traces of event stores, queues and captures, at a real receiver of OTLP."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.capture.capture import Capture
from headrace.events import EventStore, Rejected
from headrace.queues import queue
from headrace.spark.batch_tracing import with_traceparent
from headrace.testing import EmbeddedBroker
from headrace.testing.postgres import PostgresServer
from headrace.tracing import MAX_LINKS, open_tracer, traceparent_of
from tests.capture.database import Database
from tests.events.cart import Cart
from tests.otlp_receiver import OtlpReceiver, attributes, traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


def headers_of(bootstrap: str, topic: str) -> list[str | None]:
    """The traceparent of each committed record of partition 0, without its flags."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and not message.error():
        found.append((traceparent_of(message.headers() or []) or "")[:-3] or None)
    consumer.close()
    return found


# ---------------------------------------------------------------- the header


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        CALLER.upper().encode(),
        b"ff" + CALLER[2:].encode(),
    ],
)
def test_what_is_no_traceparent_is_ignored(text: bytes) -> None:
    assert traceparent_of([("a", b"x"), ("traceparent", text)]) is None
    assert traceparent_of([("a", b"x"), ("traceparent", CALLER.encode())]) == CALLER


def test_rows_get_the_header_behind_those_that_they_have() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = pa.array([None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], []], kind)
    rows = with_traceparent(CALLER, pa.record_batch({"value": ["x", "y", "z"], "headers": given}))
    names = [[header["key"] for header in row] for row in rows.column("headers").to_pylist()]
    assert names == [["traceparent"], ["a", "b", "traceparent"], ["traceparent"]]
    bare = with_traceparent(CALLER, pa.record_batch({"value": ["x", "y"]}))
    assert [
        traceparent_of([(h["key"], h["value"]) for h in row]) for row in bare.column("headers").to_pylist()
    ] == [CALLER] * 2


# ---------------------------------------------------------------- spans


def test_spans_have_parents_and_a_bounded_number_of_links(receiver: OtlpReceiver) -> None:
    tracer = open_tracer("unit", receiver.endpoint)
    assert tracer is not None
    many = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 100)]
    with tracer.start("work", parent=CALLER, links=[*many, "nonsense"]) as span:
        pass
    tracer.flush()
    (found,) = receiver.wait_for("work")
    assert (found.trace_id.hex(), found.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert len(found.links) == MAX_LINKS
    assert traceparent(found) == span.traceparent[:-3]
    assert receiver.services == {"unit"}


def test_without_an_endpoint_there_is_no_tracer_and_no_import(tmp_path: Path) -> None:
    assert open_tracer("unit", None) is None
    program = (
        "import sys, headrace.queues, headrace.events, headrace.capture.capture\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_a_command_is_a_span_and_its_events_carry_it(
    receiver: OtlpReceiver, headrace_broker: EmbeddedBroker
) -> None:
    with EventStore(f"s{uuid.uuid4().hex[:8]}", broker=headrace_broker.bootstrap, partitions=1) as store:
        store.execute(Cart, "cart-1", "create")
        store.execute(Cart, "cart-1", "check_out")
        with pytest.raises(Rejected):
            store.execute(Cart, "cart-1", "add", product="tea", quantity=1)
        topic = next(iter(store._dispatchers.values())).topics.events
    (created,) = receiver.wait_for("Cart.create")
    (refused,) = receiver.wait_for("Cart.add")
    assert attributes(created)["headrace.outcome"] == "done"
    assert attributes(refused)["headrace.outcome"] == "rejected"
    assert headers_of(headrace_broker.bootstrap, topic)[0] == traceparent(created)


def test_the_work_on_a_message_is_a_span_of_the_producers_trace(
    receiver: OtlpReceiver, headrace_broker: EmbeddedBroker
) -> None:
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
    producer.produce("mails", b"1", headers={"traceparent": CALLER})
    producer.produce("mails", b"2")
    assert producer.flush(60) == 0
    seen = {}
    for message in queue("mails", group="g", broker=headrace_broker.bootstrap, idle_timeout="1 second"):
        seen[message.value] = (message.traceparent or "")[:-3]
        if message.value == b"2":
            message.reject()
    first, second = sorted(receiver.wait_for("mails process", 2), key=lambda span: span.start_time_unix_nano)
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert seen == {b"1": traceparent(first), b"2": traceparent(second)}
    assert [attributes(span)["headrace.acknowledgment"] for span in (first, second)] == ["accept", "reject"]


def test_without_a_receiver_a_message_has_the_span_of_its_producer(headrace_broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
    producer.produce("plain", b"1", headers={"traceparent": CALLER})
    assert producer.flush(60) == 0
    messages = queue("plain", group="g", broker=headrace_broker.bootstrap, idle_timeout="1 second")
    assert [message.traceparent for message in messages] == [CALLER]


def test_a_captured_transaction_is_a_span_of_the_applications_trace(
    receiver: OtlpReceiver, headrace_broker: EmbeddedBroker, postgres_server: PostgresServer
) -> None:
    name = f"d{uuid.uuid4().hex[:8]}"
    database = Database(postgres_server.create_database(name), name, headrace_broker.bootstrap)
    tracer = open_tracer("capture", receiver.endpoint)
    try:
        database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
        settings = database.settings("users", once=True)
        Capture(settings, database.bootstrap, tracer=tracer).run()
        database.commit(
            f"SELECT pg_logical_emit_message(true, 'traceparent', '{CALLER}')",
            "INSERT INTO users VALUES (1)",
            "INSERT INTO users VALUES (2)",
        )
        database.run("INSERT INTO users VALUES (3)")
        Capture(settings, database.bootstrap, tracer=tracer).run()
    finally:
        database.close()
    spans = {traceparent(span): span for span in receiver.wait_for("capture shop", 2)}
    carried = headers_of(headrace_broker.bootstrap, "shop.public.users")
    assert carried[0] == carried[1] != carried[2]
    assert {each for each in carried if each} <= set(spans)
    assert spans[carried[0] or ""].trace_id.hex() == TRACE
    assert spans[carried[2] or ""].trace_id.hex() != TRACE


def test_without_a_tracer_captured_records_carry_the_applications_span(
    headrace_broker: EmbeddedBroker, postgres_server: PostgresServer
) -> None:
    name = f"d{uuid.uuid4().hex[:8]}"
    database = Database(postgres_server.create_database(name), name, headrace_broker.bootstrap)
    try:
        database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
        database.capture("users")
        database.commit(
            f"SELECT pg_logical_emit_message(true, 'traceparent', '{CALLER}')", "INSERT INTO users VALUES (1)"
        )
        database.run("INSERT INTO users VALUES (2)")
        database.capture("users")
    finally:
        database.close()
    assert headers_of(headrace_broker.bootstrap, "shop.public.users") == [CALLER[:-3], None]
