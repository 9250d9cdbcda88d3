"""What PySpark offers works in a Headrace session: stateful operators, sources, sinks, SQL and functions."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

pytestmark = pytest.mark.timeout(300)

SCHEMA = "user string, amount long, at timestamp"


class RunningTotal(StatefulProcessor):
    """Keeps the sum of each user's amounts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "amount long")

    def handleInputRows(  # noqa: N802  Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        before = self._total.get()[0] if self._total.exists() else 0
        total = before + sum(int(frame["amount"].sum()) for frame in rows)
        self._total.update((total,))
        yield pd.DataFrame({"user": [key[0]], "total": [total]})

    def close(self) -> None: ...


def running_total(key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    (before,) = state.get if state.exists else (0,)
    total = before + sum(int(frame["amount"].sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"user": [key[0]], "total": [total]})


class Purchases:
    """A folder of JSON files that a stream reads, and the folders of its results."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "in").mkdir()

    def add(self, *rows: tuple[str, int, int]) -> None:
        lines = [
            json.dumps({"user": user, "amount": amount, "at": f"2026-01-01T12:{minute:02}:00Z"})
            for user, amount, minute in rows
        ]
        name = f"{len(list((self.folder / 'in').iterdir()))}.json"
        (self.folder / name).write_text("\n".join(lines))
        (self.folder / name).rename(self.folder / "in" / name)

    @property
    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).json(str(self.folder / "in"))

    def collect(self, rows: DataFrame, mode: str = "append") -> list[Row]:
        """The rows that all that is there gives, beyond what an earlier call read."""
        found: list[Row] = []
        query = (
            rows.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
            .outputMode(mode)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    def write(self, rows: DataFrame, kind: str, *by: str) -> str:
        place = str(self.folder / kind)
        writer = rows.writeStream.format(kind).option("path", place).partitionBy(*by)
        writer = writer.option("checkpointLocation", f"{place}-checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()
        return place


@pytest.fixture
def purchases(spark: SparkSession, tmp_path: Path) -> Purchases:
    made = Purchases(spark, tmp_path)
    made.add(("ada", 3, 1), ("ben", 5, 2))
    return made


def totals(rows: Sequence[Row]) -> dict[str, int]:
    return {row.user: row.total for row in rows}


def test_transform_with_state_keeps_its_state_over_a_restart(purchases: Purchases) -> None:
    summed = purchases.stream.groupBy("user").transformWithStateInPandas(
        RunningTotal(), "user string, total long", "Update", "None"
    )
    assert totals(purchases.collect(summed, "update")) == {"ada": 3, "ben": 5}
    purchases.add(("ada", 4, 3))
    assert totals(purchases.collect(summed, "update")) == {"ada": 7}


def test_apply_in_pandas_with_state_keeps_its_state_over_a_restart(purchases: Purchases) -> None:
    summed = purchases.stream.groupBy("user").applyInPandasWithState(
        running_total, "user string, total long", "amount long", "update", GroupStateTimeout.NoTimeout
    )
    assert totals(purchases.collect(summed, "update")) == {"ada": 3, "ben": 5}
    purchases.add(("ada", 4, 3))
    assert totals(purchases.collect(summed, "update")) == {"ada": 7}


def test_an_aggregation_keeps_its_state_over_a_restart(purchases: Purchases) -> None:
    summed = purchases.stream.groupBy("user").agg(F.sum("amount").alias("total"))
    assert totals(purchases.collect(summed, "update")) == {"ada": 3, "ben": 5}
    purchases.add(("ben", 1, 3))
    assert totals(purchases.collect(summed, "update")) == {"ben": 6}


def test_spark_joins_two_streams_within_a_time(purchases: Purchases) -> None:
    left = purchases.stream.withWatermark("at", "1 minute").alias("left")
    right = purchases.stream.withWatermark("at", "1 minute").alias("right")
    near = F.expr(
        "left.user = right.user and right.at >= left.at and right.at <= left.at + interval 1 minute"
    )
    pairs = purchases.collect(left.join(right, near).select("left.user", "right.amount"))
    assert sorted(map(tuple, pairs)) == [("ada", 3), ("ben", 5)]


def test_duplicates_are_dropped_within_the_watermark(purchases: Purchases) -> None:
    once = purchases.stream.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["user"])
    assert {row.user for row in purchases.collect(once)} == {"ada", "ben"}
    purchases.add(("ada", 9, 3), ("cleo", 1, 3))
    assert [row.user for row in purchases.collect(once)] == ["cleo"]


def test_a_stream_is_written_to_partitioned_parquet_files(purchases: Purchases) -> None:
    place = purchases.write(purchases.stream, "parquet", "user")
    purchases.add(("ada", 4, 3))
    purchases.write(purchases.stream, "parquet", "user")
    rows = purchases.spark.read.parquet(place).groupBy("user").agg(F.sum("amount").alias("total")).collect()
    assert totals(rows) == {"ada": 7, "ben": 5}
    assert (Path(place) / "user=ada").is_dir()


def test_a_stream_is_written_to_json_files_that_a_stream_reads(purchases: Purchases) -> None:
    place = purchases.write(purchases.stream, "json")
    again = purchases.spark.readStream.schema(SCHEMA).json(place)
    assert sorted(row.amount for row in purchases.collect(again)) == [3, 5]


def test_the_memory_sink_and_sql_show_a_stream(purchases: Purchases) -> None:
    purchases.stream.createOrReplaceTempView("purchases")
    dear = purchases.spark.sql("select user, amount * 2 as total from purchases where amount > 3")
    query = dear.writeStream.format("memory").queryName("dear").trigger(availableNow=True).start()
    query.awaitTermination()
    assert totals(purchases.spark.table("dear").collect()) == {"ben": 10}


def test_the_rate_source_counts(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    found: list[int] = []
    query = rows.writeStream.foreachBatch(
        lambda batch, _: found.extend(row.value for row in batch.collect())
    ).option("checkpointLocation", str(tmp_path))
    started = query.start()
    try:
        while len(found) < 10:
            assert not started.awaitTermination(0.05)
    finally:
        started.stop()
    assert sorted(found)[:10] == list(range(10))


def test_python_functions_of_every_kind_run_on_a_stream(purchases: Purchases) -> None:
    @F.udf(returnType="long", useArrow=False)
    def by_row(amount: int) -> int:
        return amount + 1

    @F.pandas_udf("long")
    def by_series(amount: pd.Series) -> pd.Series:
        return amount + 2

    @F.arrow_udf("long")
    def by_array(amount: pa.Array) -> pa.Array:
        return pc.add(amount, 3)

    def by_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    shown = purchases.stream.where("user = 'ada'").select(
        by_row("amount").alias("a"), by_series("amount").alias("b"), by_array("amount").alias("c")
    )
    assert [tuple(row) for row in purchases.collect(shown.mapInArrow(by_batch, shown.schema))] == [(4, 5, 6)]


def test_tables_are_written_read_and_cached(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "numbers")
    spark.range(100).withColumn("even", F.col("id") % 2 == 0).write.partitionBy("even").orc(place)
    spark.range(100, 110).withColumn("even", F.lit(True)).write.mode("append").partitionBy("even").orc(place)
    assert spark.read.orc(place).where("even = 'true'").cache().count() == 60
    assert spark.sparkContext.textFile(str(Path(__file__))).count() > 10
