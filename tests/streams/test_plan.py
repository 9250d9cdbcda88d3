"""What is found in the plans of Spark: topics, and steps that keep state."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace.engine.description import Description, incompatibilities
from headrace.spark.internals import input_topics, stateful_operators


@pytest.fixture
def ticks(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate").option("subscribe", "ticks")
    return reader.load().withWatermark("timestamp", "10 seconds")


@pytest.fixture
def tocks(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate").option("subscribe", "tocks")
    return reader.load().withWatermark("timestamp", "10 seconds")


def windowed(ticks: DataFrame, size: str, column: str = "sum(value)") -> DataFrame:
    return ticks.groupBy(F.window("timestamp", size), "value").agg(F.expr(column).alias("result"))


def description(rows: DataFrame) -> Description:
    return Description(
        generation=1,
        inputs=input_topics(rows),
        output="out",
        mode="append",
        operators=stateful_operators(rows),
    )


def test_topics_come_in_the_order_of_the_plan_each_once(ticks: DataFrame, tocks: DataFrame) -> None:
    assert input_topics(tocks.union(ticks).union(tocks)) == ("tocks", "ticks")


def test_a_query_without_state_has_no_operators(ticks: DataFrame, spark: SparkSession) -> None:
    fixed = spark.createDataFrame([(1, "one")], "value long, name string")
    assert stateful_operators(ticks.filter("value > 1").join(fixed, "value")) == ()


def test_an_aggregation_is_told_with_keys_and_what_it_keeps(ticks: DataFrame) -> None:
    (operator,) = stateful_operators(windowed(ticks, "1 minute"))
    assert operator.kind == "aggregation"
    assert operator.keys == ("window struct<start:timestamp,end:timestamp>", "value bigint")
    assert operator.holds == ("sum(value) bigint",)


def test_joins_and_deduplications_are_told(ticks: DataFrame, tocks: DataFrame) -> None:
    joined = ticks.alias("a").join(tocks.alias("b"), F.expr("a.value = b.value"), "left")
    deduplicated = ticks.dropDuplicatesWithinWatermark(["value"])
    assert [operator.kind for operator in stateful_operators(joined)] == ["left outer join"]
    assert [operator.keys for operator in stateful_operators(deduplicated)] == [("value bigint",)]


def test_the_same_job_made_again_is_compatible(ticks: DataFrame) -> None:
    before, after = description(windowed(ticks, "1 minute")), description(windowed(ticks, "1 minute"))
    assert incompatibilities(before, after) == []


@pytest.mark.parametrize(("size", "column"), [("5 minutes", "sum(value)"), ("1 minute", "max(value)")])
def test_another_window_or_aggregate_is_incompatible(ticks: DataFrame, size: str, column: str) -> None:
    before, after = description(windowed(ticks, "1 minute")), description(windowed(ticks, size, column))
    assert len(incompatibilities(before, after)) == 1


def test_another_filter_or_name_is_compatible(ticks: DataFrame) -> None:
    before = windowed(ticks, "1 minute")
    after = windowed(ticks.filter("value > 3"), "1 minute").withColumnRenamed("result", "total")
    assert incompatibilities(description(before), description(after)) == []
