"""One table, and a search index, a cache and an aggregate view that are derived from it: always right."""

import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from redis import Redis

from headrace import App, redis, search, search_index
from headrace.streams.job import Job
from headrace.streams.job_folder import JobFolder
from headrace.streams.topic import Topic
from headrace.testing import EmbeddedBroker, run
from headrace.testing.redis import RedisServer
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)

SCHEMA = "id long, name string, category string, price decimal(10,2)"
Product = tuple[str, str, str]
"""Name, category, price."""
State = dict[int, Product]

FIRST: dict[int, Product | None] = {
    1: ("Green tea", "tea", "4.50"),
    2: ("Black tea", "tea", "3.00"),
    3: ("Tea cup", "china", "9.00"),
    4: ("Iron pot", "iron", "38.00"),
}
THEN: dict[int, Product | None] = {
    1: ("Green tea", "tea", "5.00"),  # another price
    3: ("Tea cup", "sale", "6.00"),  # another category: china is empty now
    4: None,
    5: ("Oolong tea", "tea", "8.00"),
}


def records(changes: dict[int, Product | None]) -> list[tuple[str, dict[str, Any] | None]]:
    """The records of a compacted topic, as captured tables have them."""
    names = ("name", "category", "price")
    return [
        (str(key), None if row is None else {"id": key, **dict(zip(names, row, strict=True))})
        for key, row in changes.items()
    ]


def after(*parts: dict[int, Product | None]) -> State:
    state: dict[int, Product | None] = {}
    for part in parts:
        state |= part
    return {key: row for key, row in state.items() if row is not None}


def sums(state: State) -> dict[str, tuple[int, Decimal]]:
    """What the aggregate view has to hold: number and value of the products of each category."""
    categories = {category for _, category, _ in state.values()}
    return {
        category: (len(prices), sum(prices, Decimal(0)))
        for category in categories
        if (prices := [Decimal(price) for _, other, price in state.values() if other == category])
    }


def assortment_of(changes: DataFrame, price: str = "price") -> DataFrame:
    rows = changes.groupBy("category").agg(
        F.sum("_weight").alias("products"), F.sum(F.expr(f"_weight * {price}")).alias("value")
    )
    return rows.withColumn("_deleted", F.col("products") == 0)


def assortment(app: App, into: Topic | None = None, price: str = "price") -> Job:
    products = app.table("products", SCHEMA, key="id")
    view = into or app.view("assortment", key="category")
    return app.job(into=view, name="assortment", output_mode="update")(
        lambda: assortment_of(products.changes.changelog.df, price)
    )


def catalogue(app: App, url: str, index: Path) -> Job:
    products = app.table("products", SCHEMA, key="id")
    targets = [search("products", key="id", text=["name"], path=str(index)), redis("product:{id}", url=url)]
    return app.job(into=targets, name="catalogue")(lambda: products.changes)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def cache(server: RedisServer) -> "Iterator[Redis]":
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


def cached(cache: Any) -> State:
    rows = [cache.hgetall(key) for key in cache.scan_iter("product:*")]
    return {int(row["id"]): (row["name"], row["category"], row["price"]) for row in rows}


def indexed(path: Path) -> State:
    rows = [hit.row for hit in search_index(str(path)).find("*", limit=1000)]
    return {row["id"]: (row["name"], row["category"], row["price"]) for row in rows}


def newest(rows: list[dict[str, Any]]) -> dict[str, tuple[int, Decimal]]:
    """What a view of these rows holds in the end."""
    view = {row["category"]: (row["products"], row["value"]) for row in rows}
    return {category: values for category, values in view.items() if values[0]}


@pytest.mark.soak  # docs/derived.md has the same in short
def test_index_and_cache_are_the_table_after_changes_and_a_crash(
    app: App, server: RedisServer, cache: Any, tmp_path: Path
) -> None:
    job = catalogue(app, server.url, tmp_path / "index")
    run(job, [{"products": records(FIRST)}, {"products": records(THEN)}], crash=("delivered", 1))
    assert cached(cache) == indexed(tmp_path / "index") == after(FIRST, THEN)
    index = search_index(str(tmp_path / "index"))
    assert (index.count("tea"), index.count("tea AND category:sale")) == (4, 1)


CHANGES = st.dictionaries(
    st.integers(1, 5),
    st.one_of(
        st.none(),
        st.tuples(st.just("Tea"), st.sampled_from(["a", "b"]), st.sampled_from(["1.00", "2.50"])),
    ),
    max_size=4,
)


def run_sums(app: App, parts: list[dict[int, Product | None]], crash: tuple[str, int]) -> Any:
    job = assortment(app, into=app.topic("sums", key="category"))
    return newest(run(job, [{"products": records(part)} for part in parts], crash=crash))


@pytest.mark.soak  # docs/derived.md has the same in short
def test_sums_follow_what_comes_changes_and_goes(app: App) -> None:
    parts = [FIRST, THEN, {1: None, 2: ("Black tea", "sale", "1.00"), 5: None}]
    assert (
        run_sums(app, parts, crash=("computed", 1)) == sums(after(*parts)) == {"sale": (2, Decimal("7.00"))}
    )


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=15)
@given(
    parts=st.lists(CHANGES, min_size=1, max_size=4), step=st.sampled_from(["computed", "written", "marked"])
)
@pytest.mark.usefixtures("spark")
def test_whatever_changes_the_sums_are_those_of_the_table(
    parts: list[dict[int, Product | None]], step: str
) -> None:
    parts = [FIRST, *parts]
    assert run_sums(App("shop"), parts, crash=(step, 0)) == sums(after(*parts))


def put(broker: EmbeddedBroker, changes: dict[int, Product | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, row in records(changes):
        producer.produce("products", key=key, value=None if row is None else json.dumps(row))
    assert producer.flush(100) == 0


def test_all_follow_one_table_and_can_be_rebuilt_from_the_log(
    app: App, headrace_broker: EmbeddedBroker, server: RedisServer, cache: Any, tmp_path: Path
) -> None:
    catalogue(app, server.url, tmp_path / "index")
    assortment(app)
    workshop = Workshop(headrace_broker.bootstrap, tmp_path / "state")

    def follow(changes: dict[int, Product | None]) -> None:
        put(headrace_broker, changes)
        assert workshop.run_once(app) == 0

    def derived() -> list[Any]:
        feed = app.changes("assortment", follow=False, broker=headrace_broker.bootstrap)
        rows = [change.row for change in feed if change.row is not None]
        return [indexed(tmp_path / "index"), cached(cache), newest(rows)]

    follow(FIRST)
    assert derived() == [after(FIRST), after(FIRST), sums(after(FIRST))]
    follow(THEN)
    table = after(FIRST, THEN)
    assert derived() == [table, table, sums(table)]

    cache.flushall()  # everything is lost but the log
    shutil.rmtree(tmp_path / "index")
    shutil.rmtree(tmp_path / "state")
    assert workshop.run_once(app) == 1, "the log knows that the jobs have run"
    for job in app.jobs:
        JobFolder.of(tmp_path / "state", "shop", job.name).reset(kind="start")
    follow({})
    assert derived() == [table, table, sums(table)]


@pytest.mark.soak
def test_sums_can_be_rebuilt_beside_the_view(
    spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    workshop = Workshop(headrace_broker.bootstrap, tmp_path)

    def view(price: str) -> dict[str, tuple[int, Decimal]]:
        app = App("shop")
        assortment(app, price=price)
        assert workshop.run_once(app) == 0
        feed = app.changes("assortment", follow=False, broker=headrace_broker.bootstrap)
        return newest([change.row for change in feed if change.row is not None])

    put(headrace_broker, FIRST)
    view("price")
    put(headrace_broker, THEN)
    assert view("price") == sums(after(FIRST, THEN))
    JobFolder.of(tmp_path, "shop", "assortment").beside.reset(kind="start")
    dearer = {category: (count, 2 * value) for category, (count, value) in sums(after(FIRST, THEN)).items()}
    assert view("price * 2") == dearer
