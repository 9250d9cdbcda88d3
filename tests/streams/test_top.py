"""The best rows of each window."""

import doctest
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.columns import ranking
from headrace.columns.ranking import Ranking
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams import top
from headrace.streams.stream import Stream
from headrace.streams.windows import hopping, session, sliding, tumbling
from headrace.testing import run

pytestmark = pytest.mark.timeout(240)

START = datetime(2026, 1, 1, tzinfo=UTC)


def order(product: str, amount: float, second: int, city: str = "Rome") -> dict[str, Any]:
    return {"product": product, "amount": amount, "city": city, "at": START + timedelta(seconds=second)}


def orders(app: App) -> Stream:
    return app.stream(
        "orders",
        "product string, amount double, city string, at timestamp",
        event_time="at",
        watermark_delay="10 seconds",
    )


def test_the_best_of_each_window_come_when_it_closes_however_it_is_computed(app: App) -> None:
    """Spark's own windows, and panes: with several keys to a window, in several tasks."""
    stream = orders(app)

    @app.job(into=app.topic("best"))
    def best() -> DataFrame:
        revenue = F.sum("amount").alias("revenue")
        minutes = stream.window(tumbling("1 minute"), by="product").agg(revenue)
        panes = stream.window(hopping("1 minute", every="15 seconds"), by="product").agg(revenue)
        both = {"own": minutes, "panes": panes}
        ranked = [
            rows.top(2, order="revenue desc").df.withColumn("way", F.lit(way)) for way, rows in both.items()
        ]
        return ranked[0].union(ranked[1])

    first = [order(product, amount, 5) for amount, product in enumerate("abcdefgh")]
    parts = [
        {"orders": [*first, order("c", 20, 50), order("x", 1, 61)]},
        {"orders": [order("a", 7, 55), order("x", 1, 200)]},
    ]
    rows = run(best, parts)
    for way in ("own", "panes"):
        minute = [row for row in rows if row["way"] == way and row["window_start"] == START]
        assert [(row["rank"], row["product"], row["revenue"]) for row in minute] == [
            (1, "c", 22.0),
            (2, "a", 7.0),
        ]
    assert list(rows[0])[:5] == ["window_start", "window_end", "product", "revenue", "rank"]


values = st.tuples(
    st.sampled_from("vw"),
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=1)),
)


@given(rows=st.lists(values, min_size=1, max_size=20), count=st.integers(1, 3), data=st.data())
def test_a_ranking_is_what_sorted_says_whatever_the_order_of_arrival(
    rows: list[Any], count: int, data: st.DataObject
) -> None:
    kind = pa.schema([("w", pa.string()), ("n", pa.int64()), ("list", pa.list_(pa.int64()))])
    given = data.draw(st.permutations(rows))
    table = pa.Table.from_pylist([dict(zip(kind.names, row, strict=True)) for row in given], schema=kind)
    kernel = Ranking(
        count=count, groups=("w",), order=(("n", "descending"), ("list", "ascending")), rank="rank"
    )
    found = [tuple(row.values()) for row in kernel.best(table).to_pylist()]
    expected = []
    for group in "vw":
        ranked = sorted(
            (row for row in rows if row[0] == group),
            key=lambda row: (row[1] is None, -(row[1] or 0), row[2] is None, repr(row[2])),
        )
        expected += [(*row, rank) for rank, row in enumerate(ranked[:count], 1)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert list(kernel([])) == []


def test_the_examples_hold() -> None:
    for module in (top, ranking):
        result = doctest.testmod(module)
        assert (result.attempted > 0, result.failed) == (True, 0)


def test_what_cannot_be_ranked_is_explained(app: App, spark: SparkSession) -> None:
    stream = orders(app)
    revenue = F.sum("amount").alias("revenue")
    with LogicalPlan(spark, "127.0.0.1:1", job="shop.best").active():
        minutes = stream.window(tumbling("1 minute"), by=["product", "city"]).agg(revenue)
        by_city = minutes.top(1, order=["revenue desc", "product"], by="city")
        assert by_city.event_time == "window_end"
        # A step in between keeps the mark by which a larger window knows the end of a smaller one.
        for step in (
            minutes.deduplicate("product", within="1 hour"),
            minutes.map_arrow(lambda batch: batch, minutes.df.schema.simpleString()[7:-1]),
            by_city,
        ):
            assert step.df.schema["window_end"].metadata == minutes.df.schema["window_end"].metadata
        unranked = {
            "a stream": stream,
            "sessions": stream.window(session("1 minute")).agg(revenue),
            "sliding": stream.window(sliding("1 minute")).agg(revenue),
            "joined": minutes.join(stream, on="product", within="1 hour"),
            "counted": minutes.transform(
                lambda df: df.groupBy("window_end").agg(F.max("revenue").alias("r"))
            ),
        }
        for rows in unranked.values():
            with pytest.raises(Misuse, match="ranks the results of tumbling or hopping windows"):
                rows.top(3, order="revenue desc")
        mistakes: list[tuple[Any, Any, Any, str]] = [
            (0, "revenue", (), "at least one row"),
            (1, [], (), "what is best"),
            (1, "profit desc", "town", "'town', 'profit', which the rows do not have"),
        ]
        for count, by_what, by, message in mistakes:
            with pytest.raises(Misuse, match=message):
                minutes.top(count, order=by_what, by=by)
        with pytest.raises(Misuse, match="adds a column 'rank'"):
            by_city.top(1, order="revenue")
        with pytest.raises(Misuse, match="'list', which have parts"):
            minutes.transform(lambda df: df.withColumn("list", F.array("revenue"))).top(1, order="list")
