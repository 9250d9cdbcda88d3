"""Rows as signed CloudEvents to a real HTTP server that takes them, fails, hangs and hangs up."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Misuse
from headrace.folders import LocalFolder
from headrace.sinks.sink import Place, Refused, Sink, Unavailable, Unsuitable
from headrace.sinks.webhook import BadSignature, sign, verify, webhook
from headrace.testing.sinks import SinkContract
from tests.sinks.receiver import Receiver
from tests.sinks.writing import write

SCHEMA = pa.schema({"id": pa.int64(), "product": pa.string(), "at": pa.timestamp("us", "UTC")})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(job="shop.alerts", generation=1, schema=SCHEMA, folder=LocalFolder(tmp_path), state=tmp_path)


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


def test_a_row_arrives_as_a_signed_event(place: Place) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url, secret="s3cret", type="shop.sold", subject="{product}", time="at")
        assert write(sink, place, 0, rows(7)) == 0
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
        with pytest.raises(BadSignature, match="another secret"):
            verify("s3cret", request.headers, forged)


def test_an_old_message_is_not_genuine() -> None:
    headers = {"webhook-id": "1", "webhook-timestamp": "5", "webhook-signature": sign("x", "1", 5, b"{}")}
    with pytest.raises(BadSignature, match="ago"):
        verify("x", headers, b"{}")
    with pytest.raises(BadSignature, match="has no webhook-id"):
        verify("x", {}, b"{}")


def test_the_signature_is_that_of_the_specification() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_row_is_sent_once_however_often_the_batch_comes(place: Place) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url)
        for _ in range(2):
            write(sink, place, 0, rows(1, 2, 2))  # two equal rows are two events
        write(sink, place, 1, rows(1))
    assert receiver.rows("id") == [1, 1, 2, 2]
    assert len(set(receiver.ids)) == 4


def test_rows_that_failed_are_sent_again_and_the_others_are_not(place: Place) -> None:
    failing = {2, 3}
    with Receiver(lambda request: 500 if request.row["id"] in failing else 200) as receiver:
        sink = webhook(receiver.url)
        with pytest.raises(Refused, match="it answered 500: it is said why") as refused:
            write(sink, place, 0, rows(1, 2, 3, 4))
        assert set(refused.value.rows) == {1, 2}
        assert not refused.value.final
        failing.clear()
        assert write(sink, place, 0, rows(4, 3, 2, 1)) == 0
    assert receiver.rows("id") == [1, 2, 2, 3, 3, 4]
    assert len(set(receiver.ids)) == 4


def test_rows_that_are_refused_are_refused_for_good(place: Place) -> None:
    with Receiver(lambda request: 422 if request.row["id"] == 2 else 200) as receiver:
        sink = webhook(receiver.url)
        with pytest.raises(Refused, match="it answered 422") as refused:
            write(sink, place, 0, rows(1, 2, 3))
        assert (list(refused.value.rows), refused.value.final) == ([1], True)
        assert write(sink, place, 0, rows(1, 3)) == 0
    assert receiver.rows("id") == [1, 2, 3]


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("hang", "no answer in time"), ("cut", "connection was cut")]
)
def test_a_row_without_an_answer_is_sent_again_with_the_same_id(
    place: Place, behaviour: Any, reason: str
) -> None:
    with Receiver() as receiver:
        receiver.behave = lambda request: behaviour if len(receiver.requests) == 1 else 200
        sink = webhook(receiver.url, timeout="2 seconds")
        with pytest.raises(Refused, match=reason) as refused:
            write(sink, place, 0, rows(1))
        assert not refused.value.final
        write(sink, place, 0, rows(1))
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def test_a_receiver_that_is_away_is_waited_for(place: Place, closed_port: int) -> None:
    with pytest.raises(Unavailable, match=r"webhook 127\.0\.0\.1: no connection: .*refused"):
        write(webhook(f"http://127.0.0.1:{closed_port}"), place, 0, rows(1))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_is_busy_is_left_alone_for_as_long_as_it_says(place: Place, status: int) -> None:
    with Receiver(lambda request: (status, {"Retry-After": "600"})) as receiver:
        sink = webhook(receiver.url, at_once=1)
        with pytest.raises(Unavailable, match=f"it answered {status}"):
            write(sink, place, 0, rows(*range(50)))
        with pytest.raises(Unavailable, match=r"left alone for \d+ s more"):
            write(sink, place, 0, rows(*range(50)))
    assert len(receiver.requests) == 1  # neither the other rows nor the next try disturbed it


def test_rows_of_one_key_arrive_in_order_and_wait_for_one_another(place: Place) -> None:
    products = {"tea": [1, 2, 3, 4], "cup": [5, 6, 7, 8]}
    table = pa.concat_tables([rows(*ids, product=product) for product, ids in products.items()])
    with Receiver() as receiver:
        receiver.behave = lambda request: (
            500 if receiver.rows("id").count(2) == 1 and request.row["id"] == 2 else 200
        )
        sink = webhook(receiver.url, order_by="product")
        with pytest.raises(Refused):
            write(sink, place, 0, table)
        write(sink, place, 0, table)
    arrived = [(request.row["product"], request.row["id"]) for request in receiver.requests]
    assert [number for product, number in arrived if product == "cup"] == [5, 6, 7, 8]
    assert [number for product, number in arrived if product == "tea"] == [1, 2, 2, 3, 4]


def test_several_are_under_way_at_once(place: Place) -> None:
    with Receiver() as receiver:
        deadline = time.monotonic() + 30

        def together(request: Any) -> int:
            while len(receiver.requests) < 4 and time.monotonic() < deadline:
                time.sleep(0.001)
            return 200

        receiver.behave = together
        write(webhook(receiver.url, at_once=4, timeout="30 seconds"), place, 0, rows(1, 2, 3, 4))
        assert time.monotonic() < deadline


def test_answers_without_end_are_not_read(place: Place) -> None:
    endless = {"Content-Length": "1000000000"}
    with Receiver(lambda request: (400 if request.row["id"] == 2 else 200, endless)) as receiver:
        sink = webhook(receiver.url, timeout="2 seconds")
        with pytest.raises(Refused, match="it answered 400"):
            write(sink, place, 0, rows(1, 2))
        assert write(sink, place, 0, rows(1)) == 0
    assert receiver.rows("id") == [1, 2]


def test_a_new_generation_sends_again(place: Place, tmp_path: Path) -> None:
    with Receiver() as receiver:
        sink = webhook(receiver.url)
        write(sink, place, 0, rows(1))
        write(sink, replace(place, generation=2, folder=LocalFolder(tmp_path / "2")), 0, rows(1))
    assert Counter(receiver.ids).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"url": "hooks.example.com"}, "the address is none"),
        ({"url": "http://h", "at_once": 0}, "at least 1"),
        ({"url": "http://h", "timeout": "soon"}, "not a duration"),
        ({"url": "http://h", "subject": "{"}, "no template"),
    ],
)
def test_what_is_declared_wrongly_is_refused_at_once(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        webhook(**arguments)


def test_columns_that_rows_lack_are_named(place: Place) -> None:
    for sink in (webhook("http://h", order_by="city"), webhook("http://h", subject="{city}")):
        with pytest.raises(Unsuitable, match="city"):
            sink.open(place)
    with pytest.raises(Unsuitable, match="no column of timestamps"):
        webhook("http://h", time="id").open(place)


def test_secrets_are_not_printed() -> None:
    sink = webhook("https://hooks.example.com/T0/pa55", secret="pa55", headers={"Authorization": "pa55"})
    assert "pa55" not in repr(sink) + sink.name
