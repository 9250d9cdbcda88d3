"""Windows of a stream that its source sums up: the same rows as by way of Spark, and nothing uncounted."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, tumbling
from headrace.columns.aggregates import AggregateSpec
from headrace.columns.hopping_windows import PANE
from headrace.columns.keyed import Times
from headrace.spark.aggregate_pushdown import DEAD_RECORDS, NEWEST, RECORDS, AggregatePushdown, Value
from headrace.spark.aggregate_pushdown_task import PartialAggregationTask
from headrace.spark.layout import ERROR, VALUE
from headrace.streams.report import rows_of
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.streams.window_jobs import FAR, SCHEMA, at_minute, counted, inputs

pytestmark = pytest.mark.timeout(600)

COLUMNS = ("key", PANE, "_headrace_rows", "v.count", "v.sum", NEWEST, RECORDS, DEAD_RECORDS)
SUMS = AggregatePushdown(
    time="at",
    keys=("key",),
    values=(Value(name="v", field="amount", type="bigint"),),
    specs=(AggregateSpec(name="total", kind="sum", column="v"),),
    assigner={"size_us": 10, "every_us": 10, "offset_us": 3},
    behind_us=0,
    columns=COLUMNS,
)
OUTPUT = pa.schema([("column0", pa.string()), *((f"column{n}", pa.int64()) for n in range(1, 8))])
FIELDS = pa.struct({"key": pa.string(), "amount": pa.int32(), "at": pa.timestamp("us", "UTC")})
ERRORS = pa.struct({"reason": pa.string(), "raw": pa.binary()})

records = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-40, 40),
    st.sampled_from(["good", "good", "good", "bad", "empty"]),
)


def read(batch: list[tuple[Any, Any, Any, str]]) -> pa.RecordBatch:
    values = [
        None if state != "good" else {"key": key, "amount": amount, "at": at}
        for key, amount, at, state in batch
    ]
    errors = [{"reason": "?", "raw": b"{"} if state == "bad" else None for *_, state in batch]
    arrays = [pa.array(values, FIELDS), pa.array(errors, ERRORS)]
    return pa.RecordBatch.from_arrays(arrays, names=[VALUE, ERROR])


@given(st.lists(st.lists(records, min_size=1, max_size=12), max_size=3))
def test_every_record_is_in_one_pane_or_counted_among_the_others(batches) -> None:
    made = list(PartialAggregationTask(SUMS, OUTPUT, Times(0, 0)).rows(map(read, batches)))
    rows = [dict(zip(COLUMNS, row.values(), strict=True)) for batch in made for row in batch.to_pylist()]
    panes = {(row["key"], row[PANE]): row for row in rows if row[NEWEST] is not None}
    everything = [record for batch in batches for record in batch]
    timed = [one for one in everything if one[3] == "good" and one[2] is not None]
    expected = Counter((key, (at - 3) // 10) for key, _, at, _ in timed)
    assert {pane: row[RECORDS] for pane, row in panes.items()} == expected
    for (key, pane), row in panes.items():
        own = [one for one in timed if (one[0], (one[2] - 3) // 10) == (key, pane)]
        assert row["v.sum"] == sum(amount or 0 for _, amount, _, _ in own)
        assert row["v.count"] == sum(amount is not None for _, amount, _, _ in own)
        assert row[NEWEST] == max(at for _, _, at, _ in own)
    assert sum(row[RECORDS] for row in rows) == len(everything)
    assert sum(row[DEAD_RECORDS] for row in rows) == sum(one[3] == "bad" for one in everything)


def test_bad_records_are_dead_letters_and_the_same_stream_may_be_used_twice(app: App) -> None:
    events = app.stream("events", SCHEMA, event_time="at", watermark_delay="0 seconds")

    @app.job(into=app.topic("counts"))
    def counts() -> Rows:
        return events.window(tumbling("6 minutes"), by="key").agg(F.count("*").alias("events"))

    @app.job(into=app.topic("both"))
    def both() -> Rows:
        one = events.window(tumbling("6 minutes")).agg(F.count("*").alias("events"))
        other = events.window(hopping("6 minutes", every="3 minutes")).agg(F.count("*").alias("events"))
        return one.transform(lambda df: df.unionByName(other.df))

    (part,) = inputs([at_minute(1), at_minute(7), at_minute(FAR)])
    part["events"][1:1] = [b"no JSON", {"key": "a", "amount": 1, "at": None}]
    rows = run(counts, part)
    assert counted(rows) == {(0, 6): 1, (6, 12): 1}
    assert [letter["value"] for letter in rows.dead] == [b"no JSON"]
    twice = run(both, part)
    assert sorted(row["events"] for row in twice) == [1] * 6
    assert [letter["value"] for letter in twice.dead] == [b"no JSON"]


def test_windows_and_sessions_of_two_streams_can_be_put_together(app: App) -> None:
    one, other = (
        app.stream(name, SCHEMA, event_time="at", watermark_delay="0 seconds")
        for name in ("events", "others")
    )

    @app.job(into=app.topic("both"))
    def both() -> Rows:
        minutes = one.window(tumbling("6 minutes"), by="key").agg(F.count("*").alias("events"))
        visits = other.window(session("2 minutes"), by="key").agg(F.count("*").alias("events"))
        return minutes.transform(lambda df: df.unionByName(visits.df))

    parts = inputs([at_minute(1), at_minute(7)], [at_minute(8), at_minute(FAR)])
    given = [{**part, "others": part["events"]} for part in parts]
    rows = run(both, given)
    assert counted(rows) == {(0, 6): 1, (6, 12): 2, (1, 3): 1, (7, 10): 2}
    assert len(rows) == 4


def test_a_source_that_gives_sums_says_how_many_records_they_are() -> None:
    summed = {"headrace.dead.orders": {"rows": 500, "dead": 2}}
    assert rows_of({"numInputRows": 7, "observedMetrics": summed}) == 500
    assert rows_of({"numInputRows": 7, "observedMetrics": {}}) == 7
