"""Rows in a real Redis: by key, exactly once, and never half of a batch."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from headrace.errors import Misuse
from headrace.folders import LocalFolder
from headrace.sinks.delivery import Delivery
from headrace.sinks.redis import ROWS, redis
from headrace.sinks.sink import Place, Refused, Sink, Superseded, Unavailable, Unsuitable
from headrace.testing.redis import RedisServer
from headrace.testing.sinks import SinkContract
from tests.sinks.writing import write

SCHEMA = pa.schema({"product": pa.string(), "revenue": pa.float64(), "_deleted": pa.bool_()})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator["Redis"]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(
        job="shop.revenue", generation=1, schema=SCHEMA, folder=LocalFolder(tmp_path), state=tmp_path
    )


class TestTheContract(SinkContract):
    deletes = True

    @pytest.fixture(autouse=True)
    def _own_keys(self, server: RedisServer, client: Any) -> None:
        self._url, self._client = server.url, client

    def sink(self) -> Sink:
        return redis("revenue:{product}", url=self._url)

    def read(self) -> list[dict[str, Any]]:
        found = [self._client.hgetall(key) for key in self._client.scan_iter("revenue:*", count=10_000)]
        return [row | {"revenue": float(row["revenue"])} for row in found]


def rows(*given: tuple[str | None, float | None, bool]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], schema=SCHEMA)


def test_a_hash_is_the_newest_row_of_its_key(server: RedisServer, client: Any, place: Place) -> None:
    sink = redis("revenue:{product}", url=server.url)
    assert write(sink, place, 0, rows(("tea", 1.0, False), ("cup", 5.0, False), ("tea", 2.5, False))) == 0
    assert client.hgetall("revenue:tea") == {"product": "tea", "revenue": "2.5"}
    write(sink, place, 1, rows(("tea", None, False), ("cup", 5.0, True)))
    assert client.hgetall("revenue:tea") == {"product": "tea"}  # nothing is left over of the row before
    assert not client.exists("revenue:cup")


def test_values_of_all_types_are_texts_as_in_json(server: RedisServer, client: Any, place: Place) -> None:
    table = pa.table(
        {
            "id": pa.array([7, 8], pa.int32()),
            "big": [1e20, None],
            "whole": [3.0, float("nan")],
            "yes": [True, None],
            "at": pa.array([datetime(2026, 1, 1, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "price": [Decimal("1.50"), None],
            "tags": [["a", "ß"], None],
            "naïve": ["☕\r\n", ""],
        }
    )
    sink = redis("all:{id}", url=server.url)
    write(sink, replace(place, schema=table.schema), 0, table)
    assert client.hgetall("all:7") == {
        "id": "7",
        "big": "1e+20",
        "whole": "3.0",
        "yes": "true",
        "at": "2026-01-01T12:00:00.000000Z",
        "price": "1.50",
        "tags": '["a", "ß"]',
        "naïve": "☕\r\n",
    }
    assert client.hgetall("all:8") == {"id": "8", "whole": "NaN", "naïve": ""}


def test_a_string_is_the_row_as_json_and_expires(server: RedisServer, client: Any, place: Place) -> None:
    sink = redis("r:{product}", kind="string", expire="1 hour", url=server.url)
    write(sink, place, 0, rows(("tea", 1.0, False)))
    assert json.loads(client.get("r:tea")) == {"product": "tea", "revenue": 1.0}
    assert 0 < client.pttl("r:tea") <= 3_600_000


def test_a_sorted_set_has_members_by_score(server: RedisServer, client: Any, place: Place) -> None:
    sink = redis("leaders", kind="zset", score="revenue", member="{product}", url=server.url)
    write(sink, place, 0, rows(("tea", 3.0, False), ("cup", 2.0, False), ("pot", 1.5, False)))
    write(sink, place, 1, rows(("tea", 1.0, False), ("cup", 0.0, True)))
    assert client.zrevrange("leaders", 0, -1, withscores=True) == [("pot", 1.5), ("tea", 1.0)]


def test_a_batch_of_more_rows_than_are_sent_at_once(server: RedisServer, client: Any, place: Place) -> None:
    count = 2 * ROWS + 1
    table = rows(*((f"p{row % (count - 1)}", float(row), row % 7 == 0) for row in range(count)))
    write(redis("many:{product}", url=server.url), place, 0, table)
    expected = {f"many:p{row}": f"{row}.0" for row in range(1, count - 1) if row % 7}
    expected["many:p0"] = f"{count - 1}.0"  # the last row has the key of the first
    pipeline = client.pipeline()
    for key in expected:
        pipeline.hget(key, "revenue")
    assert dict(zip(expected, pipeline.execute(), strict=True)) == expected
    assert client.dbsize() == len(expected) + 1  # and the mark


def test_a_batch_that_comes_again_changes_nothing(server: RedisServer, client: Any, place: Place) -> None:
    sink = redis("revenue:{product}", url=server.url)
    write(sink, place, 4, rows(("tea", 1.0, False)))
    client.delete("revenue:tea")
    assert write(sink, place, 4, rows(("tea", 1.0, False))) == 4
    assert not client.exists("revenue:tea")


def test_a_new_generation_begins_with_nothing_and_ends_the_one_before(
    server: RedisServer, client: Any, place: Place
) -> None:
    sink = redis("revenue:{product}", url=server.url)
    write(sink, place, 7, rows(("tea", 1.0, False)))
    later = replace(place, generation=2)
    target = sink.open(later)
    assert target.newest() is None
    target.write(0, rows(("tea", 2.0, False)))
    target.close()
    with pytest.raises(Superseded, match=r"later run of shop\.revenue"):
        write(sink, place, 8, rows(("tea", 3.0, False)))
    assert client.hget("revenue:tea", "revenue") == "2.0"


def test_of_two_runs_at_once_one_writes(server: RedisServer, client: Any, place: Place) -> None:
    sink = redis("revenue:{product}", url=server.url)
    target = sink.open(place)
    ask = target._ask

    def overtaken(*parts: bytes) -> Any:
        answer = ask(*parts)
        if parts[0] == b"GET":  # between WATCH and MULTI another run writes the same batch
            write(sink, place, 0, rows(("tea", 1.0, False)))
        return answer

    target._ask = overtaken  # type: ignore[method-assign]  # the only moment that matters
    with pytest.raises(Unavailable, match="at the same moment"):
        target.write(0, rows(("tea", 9.0, False)))
    assert client.hget("revenue:tea", "revenue") == "1.0"
    target.close()


def test_a_row_without_its_key_is_refused_and_nothing_is_written(
    server: RedisServer, client: Any, place: Place
) -> None:
    with pytest.raises(Refused) as refused:
        write(
            redis("revenue:{product}", url=server.url),
            place,
            0,
            rows(("tea", 1.0, False), (None, 1.0, False)),
        )
    assert list(refused.value.rows) == [1]
    assert "product is null" in refused.value.rows[1]
    assert client.keys() == []


def test_a_key_that_is_no_sorted_set_is_refused(server: RedisServer, client: Any, place: Place) -> None:
    client.set("top:cup", "mine")
    sink = redis("top:{product}", kind="zset", score="revenue", member="{product}", url=server.url)
    with pytest.raises(Refused) as refused:
        write(sink, place, 0, rows(("tea", 1.0, False), ("cup", 1.0, False)))
    assert "already, as a string" in refused.value.rows[1]
    with pytest.raises(Refused, match="no score"):
        write(sink, place, 0, rows(("tea", float("nan"), False)))
    assert client.keys() == ["top:cup"]


def test_a_redis_that_is_gone_is_waited_for(tmp_path: Path, place: Place) -> None:
    server = RedisServer(tmp_path / "own").start()
    sink = redis("revenue:{product}", url=server.url)
    target = sink.open(place)
    target.write(0, rows(("tea", 1.0, False)))
    server.kill()
    with pytest.raises(Unavailable, match=r"redis revenue:\{product\}: "):
        target.write(1, rows(("tea", 2.0, False)))
    with pytest.raises(Unavailable, match="refused"):
        sink.open(place)
    with server:  # each command was synced before it was answered
        assert write(sink, place, 1, rows(("tea", 2.0, False))) == 1


def test_a_connection_that_was_closed_while_it_was_idle_is_made_anew(
    server: RedisServer, client: Any, place: Place
) -> None:
    target = redis("revenue:{product}", url=server.url).open(place)
    target.write(0, rows(("tea", 1.0, False)))
    client.client_kill_filter(_type="normal", skipme=True)
    target.write(1, rows(("tea", 2.0, False)))
    assert client.hget("revenue:tea", "revenue") == "2.0"
    target.close()


def test_a_redis_that_is_killed_again_and_again_has_every_batch_once(tmp_path: Path, place: Place) -> None:
    batches = 60
    with RedisServer(tmp_path / "own") as server:
        sink = redis("revenue:{product}", url=server.url)
        delivery = Delivery(sink, place, tell=str, pause=lambda seconds: threading.Event().wait(0.01))
        written = threading.Semaphore(0)

        def deliver() -> None:
            for batch in range(batches):
                delivery.deliver(batch, rows(*((f"{batch}-{row}", 1.0, False) for row in range(50))))
                written.release()

        thread = threading.Thread(target=deliver)
        thread.start()
        for _ in range(3):
            for _ in range(batches // 4):
                assert written.acquire(timeout=100)
            server.restart()
        thread.join(100)
        with Redis.from_url(server.url) as client:
            assert len(list(client.scan_iter("revenue:*", count=10_000))) == batches * 50
        target = sink.open(place)
        assert target.newest() == batches - 1
        target.close()
        delivery.close()


def test_a_redis_that_is_full_takes_nothing(server: RedisServer, client: Any, place: Place) -> None:
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(Unavailable, match="maxmemory"):
            write(redis("revenue:{product}", url=server.url), place, 0, rows(("tea", 1.0, False)))
    finally:
        client.config_set("maxmemory", "0")
    assert client.keys() == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"key": "a:{}"}, "no template"),
        ({"key": "a:{b"}, "no template"),
        ({"key": "a", "kind": "list"}, "kind 'list' is not known"),
        ({"key": "a", "kind": "zset", "score": "b"}, "needs a score and a member"),
        ({"key": "a", "score": "b"}, "needs a score and a member"),
        ({"key": "a", "expire": "soon"}, "not a duration"),
        ({"key": "a", "url": "http://secret@host"}, "the address is no such thing"),
    ],
)
def test_what_is_declared_wrongly_is_refused_at_once(arguments: dict[str, str], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint) as refusal:
        redis(**arguments)  # type: ignore[arg-type]  # as a user might
    assert "secret" not in str(refusal.value)


def test_columns_that_rows_lack_are_named(place: Place) -> None:
    with pytest.raises(Unsuitable, match="needs city"):
        redis("revenue:{city}").open(place)
    with pytest.raises(Unsuitable, match="needs city"):
        redis("revenue:{product}", fields=["city"]).open(place)


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(redis("a", url="redis://:secret@127.0.0.1/0"))


KEYS = st.sampled_from(["tea", "cup", "pot", "{x}", "", "naïve ☕"])
TABLES = st.lists(st.tuples(KEYS, st.floats(allow_nan=False), st.booleans()), max_size=12)


@given(batches=st.lists(TABLES, max_size=5))
def test_whatever_comes_redis_has_the_newest_rows(server: RedisServer, batches: list[list[Any]]) -> None:
    place = Place(job="shop.model", generation=1, schema=SCHEMA, folder=LocalFolder(Path()), state=Path())
    expected: dict[str, str] = {}
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        target = redis("m:{product}", fields=["revenue"], url=server.url).open(place)
        for number, batch in enumerate(batches):
            target.write(number, rows(*batch))
            for product, revenue, deleted in batch:
                expected.pop(product, None)
                expected |= {} if deleted else {product: json.dumps(revenue)}
        target.close()
        found = {key.removeprefix("m:"): client.hget(key, "revenue") for key in client.keys("m:*")}
    assert {key: value.replace("Infinity", "inf") for key, value in found.items()} == {
        key: value.replace("Infinity", "inf") for key, value in expected.items()
    }
