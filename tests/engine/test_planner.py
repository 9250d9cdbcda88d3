"""The planner knows the whole job: what is pushed down, shuffled once more, and how far time is held back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.engine.planner import Planner
from headrace.errors import Misuse
from headrace.spark.internals import TESTED
from headrace.streams.stream import Stream
from headrace.streams.window_operator import WindowAggregation

MINUTE_MS = 60_000
WITHIN: Any = {"within": ("1 minute", "3 minutes")}
BEHIND_MS = 3 * MINUTE_MS + 1
SCHEMA = "k long, d double, at timestamp"
TIMES: Any = {"event_time": "at", "watermark_delay": "1 minute"}


@dataclass
class Shop:
    """An application with two streams."""

    app: App
    a: Stream
    b: Stream


@pytest.fixture
def shop() -> Shop:
    app = App("shop")
    return Shop(app, app.stream("a", SCHEMA, **TIMES), app.stream("b", SCHEMA, **TIMES))


def planner_of(spark: SparkSession, shop: Shop, function: Callable[[Shop], Any]) -> Planner:
    job = shop.app.job(into=shop.app.topic("out"), name="work")(lambda: function(shop))
    plan, rows = job.build(spark, "127.0.0.1:1")
    return Planner(plan, rows.frame, state="/nowhere")


def events() -> Column:
    return F.count("*").alias("events")


def counted(frame: DataFrame) -> DataFrame:
    """A window of Spark's."""
    return frame.groupBy(F.window("at", "1 minute")).count()


def joined(shop: Shop) -> Any:
    return shop.a.join(shop.b, "k", **WITHIN)


HELD_BACK: dict[str, tuple[Callable[[Shop], Any], int]] = {
    "a join alone": (joined, 0),
    "no join": (lambda shop: counted(shop.a.df), 0),
    "a window of ours behind it": (lambda shop: joined(shop).window(tumbling("1 minute")).agg(events()), 0),
    "a window of Spark's behind it": (lambda shop: counted(joined(shop).df), BEHIND_MS),
    "a window of Spark's behind another step": (
        lambda shop: counted(joined(shop).map_arrow(lambda batch: batch, "k long, at timestamp").df),
        BEHIND_MS,
    ),
    "a window of Spark's behind two": (
        lambda shop: counted(joined(shop).join(shop.a, "k", within="1 minute").df.select("at")),
        BEHIND_MS + MINUTE_MS + 1,
    ),
    "windows of Spark's behind and next to it": (
        lambda shop: counted(joined(shop).df).union(counted(shop.a.df)),
        BEHIND_MS,
    ),
    "a join of Spark's behind it": (
        lambda shop: joined(shop).df.join(shop.b.df.select("k", F.col("at").alias("t")), "k"),
        BEHIND_MS,
    ),
}


@pytest.mark.parametrize("case", HELD_BACK)
def test_time_is_held_back_only_for_operators_of_spark_behind_a_join(
    spark: SparkSession, shop: Shop, case: str
) -> None:
    function, held_back_ms = HELD_BACK[case]
    planner = planner_of(spark, shop, function)
    assert planner.held_back_ms == held_back_ms
    source = planner.nodes[0]
    assert planner.behind_ms(source, BEHIND_MS) == BEHIND_MS - held_back_ms


def test_a_join_between_two_operators_of_spark_is_refused(spark: SparkSession, shop: Shop) -> None:
    def between(shop: Shop) -> DataFrame:
        first = shop.a.transform(lambda df: df.dropDuplicatesWithinWatermark(["k"]))
        return counted(first.join(shop.b, "k", **WITHIN).df)

    with pytest.raises(Misuse, match=r"join-1 \(test_planner.py, line \d+\) is between two .* another job"):
        planner_of(spark, shop, between)


def test_a_join_behind_an_operator_of_spark_waits_for_it(spark: SparkSession, shop: Shop) -> None:
    def behind(shop: Shop) -> DataFrame:
        first = shop.a.transform(lambda df: df.dropDuplicatesWithinWatermark(["k"]))
        rows = first.join(shop.b, "k", **WITHIN).df.select("at")
        return rows.union(counted(joined(shop).df).select("window.end"))

    planner = planner_of(spark, shop, behind)
    behind_ms = {node.name: planner.behind_ms(node, 0) for node in planner.nodes}
    assert (behind_ms["join-1"], behind_ms["join-2"]) == (0, -BEHIND_MS)


SHUFFLED: dict[str, tuple[Callable[[Shop], Any], list[str]]] = {
    "nothing behind it": (joined, []),
    "a union behind it": (
        lambda shop: joined(shop).df.select("k").union(shop.a.df.select("k")),
        ["join-1"],
    ),
    "fewer tasks behind it": (lambda shop: joined(shop).df.coalesce(1), ["join-1"]),
    "a union behind a shuffle": (
        lambda shop: joined(shop).df.select("k").repartition("k").union(shop.a.df.select("k")),
        [],
    ),
    "a union behind a function": (
        lambda shop: joined(shop).map_arrow(lambda batch: batch, "k long").df.union(shop.a.df.select("k")),
        ["join-1"],
    ),
    "a join of a window": (
        lambda shop: shop.a.window(tumbling("1 minute"), by="k").agg(events()).join(shop.b, "k", **WITHIN),
        ["window-1"],
    ),
}


@pytest.mark.parametrize("case", SHUFFLED)
def test_rows_are_shuffled_once_more_where_tasks_get_other_numbers(
    spark: SparkSession, shop: Shop, case: str
) -> None:
    function, names = SHUFFLED[case]
    planner = planner_of(spark, shop, function)
    assert [node.name for node in planner.nodes if planner.is_shuffled(node)] == names


def minutes(shop: Shop, *columns: Any, **options: Any) -> Any:
    return shop.a.window(tumbling("1 minute"), by="k").agg(events(), *columns, **options)


PUSHED_DOWN: dict[str, tuple[Callable[[Shop], Any], bool]] = {
    "a window": (minutes, True),
    "a window and a step behind it": (lambda shop: minutes(shop).df.filter("events > 1"), True),
    "a window in SQL": (lambda shop: shop.app.sql("SELECT * FROM w", w=minutes(shop)), True),
    "a window that is given twice": (lambda shop: minutes(shop).df.union(minutes(shop).df), False),
    "an expression": (lambda shop: minutes(shop, F.sum(F.col("d") * 2).alias("twice")), False),
    "a step in front": (
        lambda shop: (
            shop.a.transform(lambda df: df.filter("k > 1")).window(tumbling("1 minute")).agg(events())
        ),
        False,
    ),
    "a stream that is used by another window later": (
        lambda shop: (
            minutes(shop)
            .transform(lambda df: df.select("window_end", "events"))
            .transform(
                lambda df: df.union(
                    shop.a.window(hopping("2 minutes", every="1 minute"))
                    .agg(events())
                    .df.select("window_end", "events")
                )
            )
        ),
        False,
    ),
    "rows that are used too": (
        lambda shop: minutes(shop).df.select("k").union(shop.a.df.select("k")),
        False,
    ),
    "a stream that is asked for and not used": (lambda shop: (shop.a.df, minutes(shop))[1], True),
}


@pytest.mark.parametrize("case", PUSHED_DOWN)
def test_a_source_computes_partial_aggregates_where_one_window_is_all_that_reads_it(
    spark: SparkSession, shop: Shop, case: str
) -> None:
    function, is_pushed_down = PUSHED_DOWN[case]
    planner = planner_of(spark, shop, function)
    windows = [node for node in planner.nodes if isinstance(node, WindowAggregation)]
    assert {window.pushdown(planner) is not None for window in windows} == {is_pushed_down}


def test_next_to_an_idle_stream_all_are_read_as_rows(spark: SparkSession) -> None:
    app = App("shop")
    shop = Shop(
        app, app.stream("a", SCHEMA, **TIMES), app.stream("b", SCHEMA, idle_timeout="1 minute", **TIMES)
    )
    both = planner_of(spark, shop, lambda shop: minutes(shop).df.select("k").union(shop.b.df.select("k")))
    assert [node.pushdown(both) for node in both.nodes if isinstance(node, WindowAggregation)] == [None]


def test_operators_are_named_by_kind_and_know_the_line_that_made_them(
    spark: SparkSession, shop: Shop
) -> None:
    nodes = planner_of(
        spark, shop, lambda shop: joined(shop).window(tumbling("1 minute")).agg(events())
    ).nodes
    assert [node.name for node in nodes] == ["source-1", "source-2", "join-1", "window-1"]
    assert all(node.place.startswith("test_planner.py, line ") for node in nodes)


def test_what_no_operator_can_join_is_refused_with_the_way_that_works(
    spark: SparkSession, shop: Shop
) -> None:
    with pytest.raises(Misuse, match=r"compares 'd', a double: .* Convert it by transform"):
        planner_of(spark, shop, lambda shop: shop.a.join(shop.b, "d", **WITHIN))


def test_state_that_is_not_in_a_folder_is_refused_with_the_line_of_the_operator(
    spark: SparkSession, shop: Shop
) -> None:
    planner = planner_of(spark, shop, joined)
    planner.state = "hdfs://name/state"
    with pytest.raises(Misuse, match="not a folder") as refused:
        planner.planned_rows()
    assert "test_planner.py, line" in getattr(refused.value, "headrace_place", "")


def test_these_are_the_versions_of_spark_that_private_parts_were_tested_with(spark: SparkSession) -> None:
    assert spark.version in TESTED
