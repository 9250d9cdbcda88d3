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
from headrace.sinks.delivery import SinkDelivery
from headrace.sinks.redis import ROWS, redis
from headrace.sinks.sink import (
    IncompatibleTarget,
    RowsRejected,
    Sink,
    SinkContext,
    TargetUnavailable,
    WriterFenced,
)
from headrace.sinks.staging import StagedBatch
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
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(
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


def test_a_hash_is_the_latest_row_of_its_key(server: RedisServer, client: Any, context: SinkContext) -> None:
    sink = redis("revenue:{product}", url=server.url)
    assert write(sink, context, 0, rows(("tea", 1.0, False), ("cup", 5.0, False), ("tea", 2.5, False))) == 0
    assert client.hgetall("revenue:tea") == {"product": "tea", "revenue": "2.5"}
    write(sink, context, 1, rows(("tea", None, False), ("cup", 5.0, True)))
    assert client.hgetall("revenue:tea") == {"product": "tea"}  # nothing is left over of the row before
    assert not client.exists("revenue:cup")


def test_values_of_all_types_are_text_as_in_json(
    server: RedisServer, client: Any, context: SinkContext
) -> None:
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
    write(sink, replace(context, schema=table.schema), 0, table)
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


def test_a_string_is_the_row_as_json_and_expires(
    server: RedisServer, client: Any, context: SinkContext
) -> None:
    sink = redis("r:{product}", kind="string", expire="1 hour", url=server.url)
    write(sink, context, 0, rows(("tea", 1.0, False)))
    assert json.loads(client.get("r:tea")) == {"product": "tea", "revenue": 1.0}
    assert 0 < client.pttl("r:tea") <= 3_600_000


def test_a_sorted_set_has_members_by_score(server: RedisServer, client: Any, context: SinkContext) -> None:
    sink = redis("leaders", kind="zset", score="revenue", member="{product}", url=server.url)
    write(sink, context, 0, rows(("tea", 3.0, False), ("cup", 2.0, False), ("pot", 1.5, False)))
    write(sink, context, 1, rows(("tea", 1.0, False), ("cup", 0.0, True)))
    assert client.zrevrange("leaders", 0, -1, withscores=True) == [("pot", 1.5), ("tea", 1.0)]


def test_a_batch_is_sent_in_several_commands(server: RedisServer, client: Any, context: SinkContext) -> None:
    count = 2 * ROWS + 1
    table = rows(*((f"p{row % (count - 1)}", float(row), row % 7 == 0) for row in range(count)))
    write(redis("many:{product}", url=server.url), context, 0, table)
    expected = {f"many:p{row}": f"{row}.0" for row in range(1, count - 1) if row % 7}
    expected["many:p0"] = f"{count - 1}.0"  # the last row has the key of the first
    pipeline = client.pipeline()
    for key in expected:
        pipeline.hget(key, "revenue")
    assert dict(zip(expected, pipeline.execute(), strict=True)) == expected
    assert client.dbsize() == len(expected) + 1  # and the mark


def test_a_repeated_batch_changes_nothing(server: RedisServer, client: Any, context: SinkContext) -> None:
    sink = redis("revenue:{product}", url=server.url)
    write(sink, context, 4, rows(("tea", 1.0, False)))
    client.delete("revenue:tea")
    assert write(sink, context, 4, rows(("tea", 1.0, False))) == 4
    assert not client.exists("revenue:tea")


def test_a_new_generation_starts_over_and_fences_the_old_one(
    server: RedisServer, client: Any, context: SinkContext
) -> None:
    sink = redis("revenue:{product}", url=server.url)
    write(sink, context, 7, rows(("tea", 1.0, False)))
    later = replace(context, generation=2)
    target = sink.open(later)
    assert target.last_batch() is None
    target.commit(0, StagedBatch.of(rows(("tea", 2.0, False))))
    target.close()
    with pytest.raises(WriterFenced, match=r"later run of shop\.revenue"):
        write(sink, context, 8, rows(("tea", 3.0, False)))
    assert client.hget("revenue:tea", "revenue") == "2.0"


def test_only_one_of_two_concurrent_runs_writes(
    server: RedisServer, client: Any, context: SinkContext
) -> None:
    sink = redis("revenue:{product}", url=server.url)
    target = sink.open(context)
    ask = target._ask

    def overtaken(*parts: bytes) -> Any:
        answer = ask(*parts)
        if parts[0] == b"GET":  # between WATCH and MULTI another run writes the same batch
            write(sink, context, 0, rows(("tea", 1.0, False)))
        return answer

    target._ask = overtaken  # type: ignore[method-assign]  # the only moment that matters
    with pytest.raises(TargetUnavailable, match="wrote concurrently"):
        target.commit(0, StagedBatch.of(rows(("tea", 9.0, False))))
    assert client.hget("revenue:tea", "revenue") == "1.0"
    target.close()


def test_a_row_without_its_key_is_rejected_and_nothing_is_written(
    server: RedisServer, client: Any, context: SinkContext
) -> None:
    with pytest.raises(RowsRejected) as refused:
        write(
            redis("revenue:{product}", url=server.url),
            context,
            0,
            rows(("tea", 1.0, False), (None, 1.0, False)),
        )
    assert list(refused.value.rows) == [1]
    assert "product is null" in refused.value.rows[1]
    assert client.keys() == []


def test_a_key_of_another_type_is_rejected(server: RedisServer, client: Any, context: SinkContext) -> None:
    client.set("top:cup", "mine")
    sink = redis("top:{product}", kind="zset", score="revenue", member="{product}", url=server.url)
    with pytest.raises(RowsRejected) as refused:
        write(sink, context, 0, rows(("tea", 1.0, False), ("cup", 1.0, False)))
    assert "exists in Redis as a string" in refused.value.rows[1]
    with pytest.raises(RowsRejected, match="not a score"):
        write(sink, context, 0, rows(("tea", float("nan"), False)))
    assert client.keys() == ["top:cup"]


def test_a_stopped_redis_is_unavailable(tmp_path: Path, context: SinkContext) -> None:
    server = RedisServer(tmp_path / "own").start()
    sink = redis("revenue:{product}", url=server.url)
    target = sink.open(context)
    target.commit(0, StagedBatch.of(rows(("tea", 1.0, False))))
    server.kill()
    with pytest.raises(TargetUnavailable, match=r"redis revenue:\{product\}: "):
        target.commit(1, StagedBatch.of(rows(("tea", 2.0, False))))
    with pytest.raises(TargetUnavailable, match="refused"):
        sink.open(context)
    with server:  # each command was synced before it was answered
        assert write(sink, context, 1, rows(("tea", 2.0, False))) == 1


def test_a_closed_idle_connection_is_reopened(server: RedisServer, client: Any, context: SinkContext) -> None:
    target = redis("revenue:{product}", url=server.url).open(context)
    target.commit(0, StagedBatch.of(rows(("tea", 1.0, False))))
    client.client_kill_filter(_type="normal", skipme=True)
    target.commit(1, StagedBatch.of(rows(("tea", 2.0, False))))
    assert client.hget("revenue:tea", "revenue") == "2.0"
    target.close()


def test_a_redis_that_is_killed_repeatedly_has_every_batch_once(tmp_path: Path, context: SinkContext) -> None:
    batches = 60
    with RedisServer(tmp_path / "own") as server:
        sink = redis("revenue:{product}", url=server.url)
        delivery = SinkDelivery(
            sink, context, on_status=str, wait=lambda seconds: threading.Event().wait(0.01)
        )
        written = threading.Semaphore(0)

        def deliver() -> None:
            for batch in range(batches):
                table = rows(*((f"{batch}-{row}", 1.0, False) for row in range(50)))
                delivery.deliver(batch, StagedBatch.of(table))
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
        target = sink.open(context)
        assert target.last_batch() == batches - 1
        target.close()
        delivery.close()


def test_a_full_redis_writes_nothing(server: RedisServer, client: Any, context: SinkContext) -> None:
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(TargetUnavailable, match="maxmemory"):
            write(redis("revenue:{product}", url=server.url), context, 0, rows(("tea", 1.0, False)))
    finally:
        client.config_set("maxmemory", "0")
    assert client.keys() == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"key": "a:{}"}, "not a valid template"),
        ({"key": "a:{b"}, "not a valid template"),
        ({"key": "a", "kind": "list"}, "kind 'list' is unknown"),
        ({"key": "a", "kind": "zset", "score": "b"}, "score and member are for"),
        ({"key": "a", "score": "b"}, "score and member are for"),
        ({"key": "a", "expire": "soon"}, "not a duration"),
        ({"key": "a", "url": "http://secret@host"}, "the URL is invalid"),
    ],
)
def test_an_invalid_declaration_is_rejected(arguments: dict[str, str], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint) as refusal:
        redis(**arguments)  # type: ignore[arg-type]  # as a user might
    assert "secret" not in str(refusal.value)


def test_missing_columns_are_named(context: SinkContext) -> None:
    with pytest.raises(IncompatibleTarget, match="needs city"):
        redis("revenue:{city}").open(context)
    with pytest.raises(IncompatibleTarget, match="needs city"):
        redis("revenue:{product}", fields=["city"]).open(context)


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(redis("a", url="redis://:secret@127.0.0.1/0"))


KEYS = st.sampled_from(["tea", "cup", "pot", "{x}", "", "naïve ☕"])
TABLES = st.lists(st.tuples(KEYS, st.floats(allow_nan=False), st.booleans()), max_size=12)


@given(batches=st.lists(TABLES, max_size=5))
def test_redis_has_the_latest_rows_after_random_batches(
    server: RedisServer, batches: list[list[Any]]
) -> None:
    context = SinkContext(
        job="shop.model", generation=1, schema=SCHEMA, folder=LocalFolder(Path()), state=Path()
    )
    expected: dict[str, str] = {}
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        target = redis("m:{product}", fields=["revenue"], url=server.url).open(context)
        for number, batch in enumerate(batches):
            target.commit(number, StagedBatch.of(rows(*batch)))
            for product, revenue, deleted in batch:
                expected.pop(product, None)
                expected |= {} if deleted else {product: json.dumps(revenue)}
        target.close()
        found = {key.removeprefix("m:"): client.hget(key, "revenue") for key in client.keys("m:*")}
    assert {key: value.replace("Infinity", "inf") for key, value in found.items()} == {
        key: value.replace("Infinity", "inf") for key, value in expected.items()
    }
