"""Joins of two streams: what matches, what comes out unmatched, and when."""

import doctest
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, tumbling
from headrace.engine import columns
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.streams.stream import Stream
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS
from tests.streams.join_reference import Event, JoinReference, Part, order

pytestmark = pytest.mark.timeout(240)

START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def order_row(order_id: int | None, product: str, amount: int, minute: float) -> Row:
    return {"order_id": order_id, "product": product, "amount": amount, "at": at(minute)}


def payment(order_id: int | None, paid: int, minute: float) -> Row:
    return {"order_id": order_id, "paid": paid, "at": at(minute)}


def streams(app: App) -> tuple[Stream, Stream]:
    times: Any = {"event_time": "at", "watermark_delay": "2 minutes"}
    orders = app.stream("orders", "order_id long, product string, amount int, at timestamp", **times)
    return orders, app.stream("payments", "order_id long, paid int, at timestamp", **times)


FIRST = {
    "orders": [order_row(1, "ProductA", 20, 0), order_row(2, "ProductB", 15, 1)],
    "payments": [payment(1, 20, 3), payment(3, 30, 4)],
}
TIME_PASSES = {"orders": [order_row(None, "", 0, 20)], "payments": [payment(None, 0, 20)]}
"""Rows without a key match nothing, and yet say how late it is."""


def statuses(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Order, product, amount and payment of all rows that have a key, in the order of the log."""
    names = ("order_id", "product", "amount", "paid")
    return [tuple(row[name] for name in names) for row in rows if row["order_id"] is not None]


PAID = (1, "ProductA", 20, 20)
UNPAID = (2, "ProductB", 15, None)
UNKNOWN = (3, None, None, 30)
OUTER = ("left", "right", "full")


@pytest.fixture(scope="module")
def joined(spark: SparkSession) -> dict[str, list[Row]]:
    """What comes of the same orders and payments in each outer join, over a crash."""
    app = App("shop")
    orders, payments = streams(app)

    @app.job(into=app.topic("order_status", key="order_id"))
    def order_status() -> DataFrame:
        kinds = [
            orders.join(payments, on="order_id", within="10 minutes", how=how).df.withColumn(
                "how", F.lit(how)
            )
            for how in OUTER
        ]
        return reduce(DataFrame.union, kinds)

    rows = run(order_status, [FIRST, TIME_PASSES], crash=("written", 3))
    return {how: [row for row in rows if row["how"] == how] for how in OUTER}


def test_an_order_joins_its_payment_as_soon_as_both_are_there(app: App) -> None:
    orders, payments = streams(app)

    @app.job(into=app.topic("order_status", key="order_id"))
    def order_status() -> Rows:
        return orders.join(payments, on="order_id", within="10 minutes", how="left")

    rows = run(order_status, FIRST)
    assert statuses(rows) == [PAID]
    assert list(rows[0]) == ["order_id", "product", "amount", "at", "paid", "payments_at"]
    assert (rows[0]["at"], rows[0]["payments_at"]) == (at(0), at(3))


def test_an_order_without_a_payment_comes_once_when_the_time_allowed_has_passed(joined: Any) -> None:
    assert statuses(joined["left"]) == [PAID, UNPAID]


def test_a_payment_without_an_order_appears_in_a_right_join(joined: Any) -> None:
    assert statuses(joined["right"]) == [PAID, UNKNOWN]
    assert [row["paid"] for row in joined["right"] if row["order_id"] is None] == [0]


def test_a_full_join_has_what_either_side_alone_has_and_no_two_nulls_are_equal(joined: Any) -> None:
    rows = joined["full"]
    assert sorted(statuses(rows)) == sorted([PAID, UNPAID, UNKNOWN])
    keyless = [(row["product"], row["paid"]) for row in rows if row["order_id"] is None]
    assert sorted(keyless, key=str) == [("", None), (None, 0)]


def test_an_inner_join_has_matches_only_and_windows_can_follow_it(app: App) -> None:
    orders, payments = streams(app)

    @app.job(into=app.topic("revenue"))
    def revenue() -> Rows:
        """What was paid for the orders of each ten minutes."""
        paid = orders.join(payments, on="order_id", within=("1 minute", "5 minutes"))
        return paid.transform(
            lambda paid: (
                paid.groupBy(F.window("at", "10 minutes"))
                .agg(F.sum("paid").alias("paid"))
                .select(F.col("window.start").alias("at"), "paid")
            )
        )

    inputs = {
        "orders": [order_row(n, "tea", 1, n) for n in range(1, 15)] + [order_row(99, "", 0, 60)],
        # Order n is paid n minutes later: from the sixth on too late. One minute too early is in time.
        "payments": [payment(n, 10**n, 2 * n) for n in range(8)]
        + [payment(12, 7, 11), payment(13, 9, 11), payment(98, 0, 60)],
    }
    windows = sorted((row["at"], row["paid"]) for row in run(revenue, inputs))
    assert windows == [(at(0), 111_110), (at(10), 7)]


def test_the_result_of_a_window_has_the_time_just_before_its_end_in_a_join(app: App) -> None:
    orders, _ = streams(app)

    @app.job(into=app.topic("dearest"))
    def dearest() -> Rows:
        """The orders with the largest amount of ten minutes: one at their end belongs to the next ten."""
        largest = orders.window(tumbling("10 minutes")).agg(F.max("amount").alias("amount"))
        return largest.join(orders, on="amount", within=("10 minutes", "0 seconds"))

    inputs = {"orders": [order_row(1, "", 7, 0), order_row(2, "", 7, 10), order_row(3, "", 1, 40)]}
    rows = run(dearest, inputs)
    assert sorted((row["window_end"], row["order_id"]) for row in rows) == [(at(10), 1), (at(20), 2)]


def test_sides_with_other_names_and_a_stream_with_itself(app: App) -> None:
    clicks = app.stream(
        "shop.clicks", "user long, page string, at timestamp", event_time="at", watermark_delay="1 minute"
    )
    users = app.stream(
        "signups", "id int, page string, on timestamp", event_time="on", watermark_delay="1 minute"
    )

    @app.job(into=app.topic("out"))
    def both() -> Rows:
        again = clicks.transform(lambda df: df.filter("page <> 'start'"))
        twice = clicks.join(again, on="user", within=("0 seconds", "2 minutes"))
        return users.join(twice, on={"id": "user"}, within="1 hour")

    rows = run(
        both,
        {
            "shop.clicks": [
                {"user": 1, "page": "start", "at": at(1)},
                {"user": 1, "page": "tea", "at": at(2)},
                {"user": 1, "page": "cup", "at": at(4)},
            ],
            "signups": [{"id": 1, "page": "form", "on": at(0)}],
        },
    )
    pages = [(row["page"], row["right_page"], row["shop_clicks_page"]) for row in rows]
    assert sorted(pages) == [
        ("form", "cup", "cup"),
        ("form", "start", "tea"),
        ("form", "tea", "cup"),
        ("form", "tea", "tea"),
    ]
    names = ["id", "page", "on", "right_page", "at", "shop_clicks_page", "shop_clicks_at"]
    assert list(rows[0]) == names


def test_the_examples_of_names_hold() -> None:
    result = doctest.testmod(columns)
    assert (result.attempted > 0, result.failed) == (True, 0)


MISTAKES: dict[str, Callable[[Rows, Rows], object]] = {
    "one of inner, left, right, full": lambda a, b: a.join(b, on="k", within="1 minute", how="outer"),
    "which is not a duration": lambda a, b: a.join(b, on="k", within="soon"),
    "compares 'x', which its right side does not have": lambda a, b: a.join(b, on="x", within="1 minute"),
    "at least one column": lambda a, b: a.join(b, on=[], within="1 minute"),
    "a string, with 'n', a long": lambda a, b: a.join(b, on={"k": "n"}, within="1 minute"),
    "rename one of them": lambda a, b: b.join(b, on="k", within="1 minute").join(
        b, on="k", within="1 minute"
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_explained(app: App, spark: SparkSession, message: str) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("'a' as k", "value as n", "timestamp as at")
    left = Rows(frame=frame.withColumn("x", F.lit(1)).withWatermark("at", "1 minute"), event_time="at",
                watermark_delay="1 minute")  # fmt: skip
    right = Rows(frame=frame.withWatermark("at", "1 minute"), event_time="at", watermark_delay="1 minute")
    with LogicalPlan(spark, "127.0.0.1:1").active(), pytest.raises(Misuse, match=message):
        MISTAKES[message](left, right)
    with pytest.raises(Misuse, match="the right side of a join needs to know when"):
        left.join(Rows(frame=frame), on="k", within="1 minute")


NESTED = (
    "tags array<string>, more struct<x: int, when: timestamp, counts: map<string, int>>, price decimal(9, 2)"
)
PARTS_OF_A_TRIP = [(0, "a", 1), (0, "b", 2), (1, None, 2), (3, "a", None), (12, "c", 7), (30, "d", 9)]


def trips(first: int) -> list[Row]:
    """Rows of several times, keys and columns that have parts; those of a second part repeat the keys."""
    more = {"x": first, "when": at(first), "counts": {"one": 1, "none": None}}
    nested = {"tags": ["x", None], "more": more, "price": Decimal("1.25")}
    rows = [{"k": k, "n": n, "m": n, "at": at(first + minute), **nested} for minute, k, n in PARTS_OF_A_TRIP]
    return [*rows, {"k": "a", "n": 1, "m": 1, "at": None, "tags": None, "more": None, "price": None}]


NEAR = (
    "a.k = b.k and a.n = b.m and b.at between a.at - interval 1 minute and a.at + interval 2 minutes "
    "and a.k is not null and b.k is not null and a.n is not null and b.m is not null"
)


def test_a_join_is_that_of_spark(spark: SparkSession) -> None:
    """Several keys of unlike sizes, and columns that have parts."""
    app = App("shop")
    times: Any = {"event_time": "at", "watermark_delay": "1 minute"}
    left = app.stream("trips", f"k string, n int, at timestamp, {NESTED}", **times)
    right = app.stream("legs", f"k string, m long, at timestamp, {NESTED}", **times)
    names = ["tags", "more", "price", "at"]

    @app.job(into=app.topic("out"))
    def joined() -> Rows:
        return left.join(right, on={"k": "k", "n": "m"}, within=("1 minute", "2 minutes"), how="left")

    @app.job(into=app.topic("native"))
    def native() -> DataFrame:
        pairs = left.df.alias("a").join(right.df.alias("b"), F.expr(NEAR), "left")
        others = [F.col(f"b.{name}").alias(f"legs_{name}") for name in names]
        return pairs.select("a.k", "a.n", *(F.col(f"a.{name}") for name in names), *others)

    inputs = [
        {"trips": trips(0), "legs": [*trips(1), *trips(60)]},
        {"trips": [*trips(2), *trips(90)], "legs": [*trips(2), *trips(90)]},
    ]
    rows, expected = run(joined, inputs), run(native, inputs)
    timed = [row for row in rows if row["at"] is not None]
    assert sorted(str(sorted(row.items())) for row in timed) == sorted(
        str(sorted(row.items())) for row in expected
    )
    # Spark keeps rows without a time for ever.
    assert len(rows) - len(timed) == 3


def test_joins_of_joins_drop_what_is_late(spark: SparkSession) -> None:
    app = App("shop")
    times: Any = {"event_time": "at", "watermark_delay": "1 minute"}
    left = app.stream("trips", f"k string, n int, at timestamp, {NESTED}", **times)
    right = app.stream("legs", f"k string, m long, at timestamp, {NESTED}", **times)

    @app.job(into=app.topic("out"))
    def joined() -> Rows:
        one = left.join(right, on={"k": "k", "n": "m"}, within=("1 minute", "2 minutes"), how="left")
        other = right.join(left, on={"k": "k", "m": "n"}, within="1 minute", how="right")
        return one.join(other, on={"k": "k", "n": "m"}, within="2 minutes")

    inputs = [
        {"trips": trips(0), "legs": [*trips(1), *trips(60)]},
        {"trips": [*trips(2), *trips(90)], "legs": [*trips(2), *trips(90)]},
    ]
    rows = run(joined, inputs)
    assert len(rows) > 5
    # Of the second part five rows of each side are late, twice; where rows come out only as pairs, those
    # without a key are not counted.
    assert rows.dropped == 2 * (5 + 3)


LATENESS, BEFORE, AFTER, FAR = 5, 3, 7, 100_000
TIMES = st.one_of(st.integers(1, 40), st.integers(1, 40), st.sampled_from([None, FAR]))
SIDE = st.lists(st.tuples(st.sampled_from([None, "a", "a", "b"]), TIMES), max_size=7)
PARTS = st.lists(st.tuples(SIDE, SIDE), min_size=2, max_size=3)


def named(parts: list[Any]) -> list[Part]:
    """Events with numbers; each part has a row of its own on the left, so that there is a batch for it."""
    numbers = iter(range(1_000_000))
    made = []
    for left, right in parts:
        sides = ([(None, None), *left], right)
        made.append(tuple([Event(name=next(numbers), key=k, time=t) for k, t in side] for side in sides))
    return made  # type: ignore[return-value]  # a tuple of two


def as_rows(events: Any) -> list[Row]:
    return [
        {"k": e.key, "n": e.name, "at": None if e.time is None else START + timedelta(seconds=e.time)}
        for e in events
    ]


def check_against_the_reference(how: str, parts: list[Part], crash: tuple[str, int] | None) -> None:
    app = App("shop")
    schema, times = (
        "k string, n long, at timestamp",
        {"event_time": "at", "watermark_delay": f"{LATENESS} seconds"},
    )
    left, right = app.stream("left", schema, **times), app.stream("right", schema, **times)  # type: ignore[arg-type]

    @app.job(into=app.topic("out", partitions=2))
    def joined() -> Rows:
        return left.join(right, on="k", within=(f"{BEFORE} seconds", f"{AFTER} seconds"), how=how)

    rows = run(joined, [{"left": as_rows(one), "right": as_rows(other)} for one, other in parts], crash=crash)
    base = int(START.timestamp())
    moved = [tuple([_moved(e, base) for e in side] for side in part) for part in parts]
    reference = JoinReference(how=how, before=BEFORE, after=AFTER, watermark_delay=LATENESS)
    found = sorted([(row["n"], row["right_n"]) for row in rows], key=order)
    assert found == reference.pairs(moved)  # type: ignore[arg-type]


def _moved(event: Event, base: int) -> Event:
    return Event(name=event.name, key=event.key, time=None if event.time is None else event.time + base)


CRASHES = st.one_of(st.none(), st.tuples(st.sampled_from(TOPIC_STEPS), st.integers(0, 1)))
STORM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def test_a_join_is_what_plain_python_says(spark: SparkSession) -> None:
    chance = Random(5)

    def side(first: int) -> list[tuple[str | None, int | None]]:
        keys, times = [None, *"abcde"], [None, *range(first, first + 25)]
        return [(chance.choice(keys), chance.choice(times)) for _ in range(40)]

    parts = [(side(1), side(1)), (side(15), [*side(15), ("a", FAR)])]
    check_against_the_reference("full", named(parts), ("committed", 0))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=60, **STORM)  # type: ignore[arg-type]
@given(how=st.sampled_from(["inner", "left", "right", "full"]), parts=PARTS, crash=CRASHES)
def test_many_joins_are_what_plain_python_says(
    spark: SparkSession, how: str, parts: list[Any], crash: tuple[str, int] | None
) -> None:
    check_against_the_reference(how, named(parts), crash)
