"""Rows as signed CloudEvents to a real HTTP server that accepts them, fails, hangs and disconnects."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from headrace.errors import Misuse
from headrace.folders import LocalFolder
from headrace.sinks.sink import IncompatibleTarget, RowsRejected, Sink, SinkContext, TargetUnavailable
from headrace.sinks.webhook import BadSignature, sign, verify, webhook
from headrace.testing.sinks import SinkContract
from tests.sinks.receiver import Receiver
from tests.sinks.writing import write

SCHEMA = pa.schema({"id": pa.int64(), "product": pa.string(), "at": pa.timestamp("us", "UTC")})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(
        job="shop.alerts", generation=1, schema=SCHEMA, folder=LocalFolder(tmp_path), state=tmp_path
    )


def rows(*ids: int, product: str = "tea") -> pa.Table:
    return pa.Table.from_pylist([{"id": each, "product": product, "at": NOON} for each in ids], schema=SCHEMA)


class TestTheContract(SinkContract):
    replaces = False
    is_atomic = False

    @pytest.fixture(autouse=True)
    def _own_receiver(self) -> Iterator[None]:
        with Receiver() as self._receiver:
            yield

    def sink(self) -> Sink:
        return webhook(self._receiver.url)

    def read(self) -> list[dict[str, Any]]:
        return [request.row for request in self._receiver.requests]


def test_a_row_arrives_as_a_signed_event(context: SinkContext) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url, secret="s3cret", type="shop.sold", subject="{product}", time="at")
        assert write(sink, context, 0, rows(7)) == 0
    (request,) = receiver.requests
    identity = verify("s3cret", request.headers, request.body)
    assert request.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert request.headers["Idempotency-Key"] == identity
    assert request.event == {
        "specversion": "1.0",
        "id": identity,
        "source": "/shop.alerts",
        "type": "shop.sold",
        "subject": "tea",
        "time": "2026-01-01T12:00:00.000000Z",
        "datacontenttype": "application/json",
        "data": {"id": 7, "product": "tea", "at": "2026-01-01T12:00:00.000000Z"},
    }
    for forged in (request.body + b" ", request.body.replace(b"tea", b"pot")):
        with pytest.raises(BadSignature, match="different one"):
            verify("s3cret", request.headers, forged)


def test_an_old_message_is_rejected() -> None:
    headers = {"webhook-id": "1", "webhook-timestamp": "5", "webhook-signature": sign("x", "1", 5, b"{}")}
    with pytest.raises(BadSignature, match="ago"):
        verify("x", headers, b"{}")
    with pytest.raises(BadSignature, match="has no webhook-id"):
        verify("x", {}, b"{}")


def test_the_signature_matches_the_specification() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_row_is_sent_once_when_the_batch_is_repeated(context: SinkContext) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url)
        for _ in range(2):
            write(sink, context, 0, rows(1, 2, 2))  # two equal rows are two events
        write(sink, context, 1, rows(1))
    assert receiver.rows("id") == [1, 1, 2, 2]
    assert len(set(receiver.ids)) == 4


def test_only_failed_rows_are_sent_again(context: SinkContext) -> None:
    failing = {2, 3}
    with Receiver(lambda request: 500 if request.row["id"] in failing else 200) as receiver:
        sink = webhook(receiver.url)
        with pytest.raises(RowsRejected, match="it responded 500: it is said why") as refused:
            write(sink, context, 0, rows(1, 2, 3, 4))
        assert set(refused.value.rows) == {1, 2}
        assert refused.value.retryable
        failing.clear()
        assert write(sink, context, 0, rows(4, 3, 2, 1)) == 0
    assert receiver.rows("id") == [1, 2, 2, 3, 3, 4]
    assert len(set(receiver.ids)) == 4


def test_secrets_that_the_receiver_repeats_are_not_shown(context: SinkContext) -> None:
    with Receiver(lambda request: 404) as receiver:
        url = receiver.url.replace("/events", "/services/T0/b7ad6b71?key=9203331b")
        receiver.reason = f"Cannot POST {urlsplit(url).path} s3cret-s3cret Bearer x9x9x9 {'-' * 300}"
        sink = webhook(url, secret="s3cret-s3cret", headers={"Authorization": "Bearer x9x9x9"})
        with pytest.raises(RowsRejected, match=r"404: Cannot POST \*\*\* \*\*\* \*\*\* -+$") as refused:
            write(sink, context, 0, rows(1))
    assert len(refused.value.rows[0]) < 250


@pytest.mark.parametrize(
    "url", ["http://host:99999/T0/b7ad6b71", "http://[host/T0/b7ad6b71", "ftp://b7ad6b71"]
)
def test_an_invalid_url_is_not_repeated(url: str) -> None:
    with pytest.raises(Misuse, match="the URL is invalid") as refused:
        webhook(url)
    assert "b7ad6b71" not in str(refused.value)
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_rejected_rows_are_not_retried(context: SinkContext) -> None:
    with Receiver(lambda request: 422 if request.row["id"] == 2 else 200) as receiver:
        sink = webhook(receiver.url)
        with pytest.raises(RowsRejected, match="it responded 422") as refused:
            write(sink, context, 0, rows(1, 2, 3))
        assert (list(refused.value.rows), refused.value.retryable) == ([1], False)
        assert write(sink, context, 0, rows(1, 3)) == 0
    assert receiver.rows("id") == [1, 2, 3]


@pytest.mark.parametrize(
    ("behavior", "reason"), [("hang", "no response before the timeout"), ("cut", "connection was lost")]
)
def test_a_row_without_a_response_is_sent_again_with_the_same_id(
    context: SinkContext, behavior: Any, reason: str
) -> None:
    with Receiver() as receiver:
        receiver.behave = lambda request: behavior if len(receiver.requests) == 1 else 200
        sink = webhook(receiver.url, timeout="2 seconds")
        with pytest.raises(RowsRejected, match=reason) as refused:
            write(sink, context, 0, rows(1))
        assert refused.value.retryable
        write(sink, context, 0, rows(1))
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def test_an_unreachable_receiver_is_unavailable(context: SinkContext, closed_port: int) -> None:
    with pytest.raises(TargetUnavailable, match=r"webhook 127\.0\.0\.1: no connection: .*refused"):
        write(webhook(f"http://127.0.0.1:{closed_port}"), context, 0, rows(1))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_of_a_busy_receiver_is_respected(context: SinkContext, status: int) -> None:
    with Receiver(lambda request: (status, {"Retry-After": "600"})) as receiver:
        sink = webhook(receiver.url, max_in_flight=1)
        with pytest.raises(TargetUnavailable, match=f"it responded {status}"):
            write(sink, context, 0, rows(*range(50)))
        with pytest.raises(TargetUnavailable, match=r"asked to wait \d+ s more"):
            write(sink, context, 0, rows(*range(50)))
    assert len(receiver.requests) == 1  # neither the other rows nor the next try disturbed it


def test_rows_with_the_same_order_by_arrive_in_order(context: SinkContext) -> None:
    products = {"tea": [1, 2, 3, 4], "cup": [5, 6, 7, 8]}
    table = pa.concat_tables([rows(*ids, product=product) for product, ids in products.items()])
    with Receiver() as receiver:
        receiver.behave = lambda request: (
            500 if receiver.rows("id").count(2) == 1 and request.row["id"] == 2 else 200
        )
        sink = webhook(receiver.url, order_by="product")
        with pytest.raises(RowsRejected):
            write(sink, context, 0, table)
        write(sink, context, 0, table)
    arrived = [(request.row["product"], request.row["id"]) for request in receiver.requests]
    assert [number for product, number in arrived if product == "cup"] == [5, 6, 7, 8]
    assert [number for product, number in arrived if product == "tea"] == [1, 2, 2, 3, 4]


def test_several_messages_are_in_flight(context: SinkContext) -> None:
    with Receiver() as receiver:
        deadline = time.monotonic() + 30

        def together(request: Any) -> int:
            while len(receiver.requests) < 4 and time.monotonic() < deadline:
                time.sleep(0.001)
            return 200

        receiver.behave = together
        write(webhook(receiver.url, max_in_flight=4, timeout="30 seconds"), context, 0, rows(1, 2, 3, 4))
        assert time.monotonic() < deadline


def test_endless_responses_are_not_read(context: SinkContext) -> None:
    endless = {"Content-Length": "1000000000"}
    with Receiver(lambda request: (400 if request.row["id"] == 2 else 200, endless)) as receiver:
        sink = webhook(receiver.url, timeout="2 seconds")
        with pytest.raises(RowsRejected, match="it responded 400"):
            write(sink, context, 0, rows(1, 2))
        assert write(sink, context, 0, rows(1)) == 0
    assert receiver.rows("id") == [1, 2]


def test_a_new_generation_sends_again(context: SinkContext, tmp_path: Path) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url)
        write(sink, context, 0, rows(1))
        write(sink, replace(context, generation=2, folder=LocalFolder(tmp_path / "2")), 0, rows(1))
    assert Counter(receiver.ids).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"url": "hooks.example.com"}, "the URL is invalid"),
        ({"url": "http://h", "max_in_flight": 0}, "at least 1"),
        ({"url": "http://h", "timeout": "soon"}, "not a duration"),
        ({"url": "http://h", "subject": "{"}, "not a valid template"),
    ],
)
def test_an_invalid_declaration_is_rejected(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        webhook(**arguments)


def test_missing_columns_are_named(context: SinkContext) -> None:
    for sink in (webhook("http://h", order_by="city"), webhook("http://h", subject="{city}")):
        with pytest.raises(IncompatibleTarget, match="city"):
            sink.open(context)
    with pytest.raises(IncompatibleTarget, match="not a timestamp column"):
        webhook("http://h", time="id").open(context)


def test_secrets_are_not_printed() -> None:
    sink = webhook("https://hooks.example.com/T0/pa55", secret="pa55", headers={"Authorization": "pa55"})
    assert "pa55" not in repr(sink) + sink.name
