"""Which way streams are joined: by a stage of ours, with time held back, shuffled once more, or by Spark."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace.streams.description import Description, incompatibilities
from headrace.streams.join_strategy import JoinStrategy, join_strategy
from headrace.streams.plan import stateful_operators
from headrace.streams.query_builder import QueryBuilder
from headrace.streams.rows import Rows

MINUTE_MS = 60_000
WITHIN = {"within": ("1 minute", "3 minutes")}
BEHIND_MS = 3 * MINUTE_MS + 1
NATIVE = JoinStrategy(is_native=True)


def rows(spark: SparkSession, name: str) -> Rows:
    frame = spark.readStream.format("rate").load().selectExpr("value AS k", "timestamp AS at")
    watched = frame.withColumn(name, F.lit(name)).withColumn("d", F.lit(1.5)).withWatermark("at", "1 minute")
    return Rows(frame=watched, event_time="at", watermark_delay="1 minute", topic=name)


def counted(made: Rows) -> DataFrame:
    return made.frame.groupBy(F.window("at", "1 minute")).count()


@pytest.fixture
def builder(spark: SparkSession, tmp_path: Path) -> QueryBuilder:
    return QueryBuilder(spark, "", job="shop.work", state=str(tmp_path))


Work = Callable[[Rows, Rows], DataFrame]
WORKS: dict[str, tuple[Work, JoinStrategy]] = {
    "a join alone": (lambda a, b: a.join(b, "k", **WITHIN).frame, JoinStrategy()),
    "no join": (lambda a, _: counted(a), JoinStrategy()),
    "a window of Spark's behind it": (
        lambda a, b: counted(a.join(b, "k", **WITHIN)),
        JoinStrategy(behind_ms=BEHIND_MS),
    ),
    "a window of Spark's behind two": (
        lambda a, b: counted(a.join(b, "k", **WITHIN).join(replace(b, topic="c"), "k", within="1 minute")),
        JoinStrategy(behind_ms=BEHIND_MS + MINUTE_MS + 1),
    ),
    "windows of Spark's behind and beside it": (
        lambda a, b: counted(a.join(b, "k", **WITHIN)).union(counted(a)),
        NATIVE,
    ),
    "a join of Spark's behind it": (
        lambda a, b: a.join(b, "k", **WITHIN).frame.join(b.frame.select("k", F.col("at").alias("t")), "k"),
        NATIVE,
    ),
    "a union behind it": (
        lambda a, b: a.join(b, "k", **WITHIN).frame.select("k").union(a.frame.select("k")),
        JoinStrategy(is_shuffled=True),
    ),
    "fewer tasks behind it": (
        lambda a, b: a.join(b, "k", **WITHIN).frame.coalesce(1),
        JoinStrategy(is_shuffled=True),
    ),
    "a union behind a shuffle": (
        lambda a, b: a.join(b, "k", **WITHIN).frame.select("k").repartition("k").union(a.frame.select("k")),
        JoinStrategy(),
    ),
}


@pytest.mark.parametrize("work", WORKS)
def test_what_follows_a_join_decides_how_it_is_made(
    spark: SparkSession, builder: QueryBuilder, work: str
) -> None:
    make, way = WORKS[work]
    with builder.active():
        frame = make(rows(spark, "a"), rows(spark, "b"))
    assert join_strategy(frame) == way
    if way == NATIVE:
        return
    builder.look_at(frame)
    again = QueryBuilder(spark, "", state=builder.state, first=builder)
    with again.active():
        frame = make(rows(spark, "a"), rows(spark, "b"))
    assert not join_strategy(frame).is_shuffled


def joined(builder: QueryBuilder, key: str = "k") -> DataFrame:
    with builder.active():
        return rows(builder.spark, "a").join(rows(builder.spark, "b"), key, **WITHIN).frame


def operators(frame: DataFrame) -> list[str]:
    return [operator.kind for operator in stateful_operators(frame)]


def test_spark_joins_what_no_stage_can(spark: SparkSession, builder: QueryBuilder) -> None:
    assert operators(joined(builder)) == []
    assert operators(joined(builder, key="d")) == ["inner join"], "floating-point numbers"
    assert operators(joined(QueryBuilder(spark, "", state="hdfs://name/state"))) == ["inner join"]


def test_a_checkpoint_of_spark_s_join_is_refused(spark: SparkSession, builder: QueryBuilder) -> None:
    stage = joined(builder)
    builder.join_strategy = NATIVE
    native = joined(builder)
    before, after = (
        Description(
            generation=0, inputs=("a", "b"), output="c", mode="append", operators=stateful_operators(frame)
        )
        for frame in (native, stage)
    )
    assert incompatibilities(before, after) == ["it kept state for inner join, and now for nothing."]
    assert native.schema.simpleString() == stage.schema.simpleString()
