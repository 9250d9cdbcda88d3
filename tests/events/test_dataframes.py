"""Events as frames of Spark."""

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.events import Aggregate, Event, EventStore
from headrace.events.topics import open_topics
from headrace.testing import EmbeddedBroker
from tests.events.cart import Added, Cart, CheckedOut, Removed


@pytest.fixture(scope="module")
def shop(event_broker: EmbeddedBroker):
    with EventStore("shop", broker=event_broker.bootstrap, partitions=2) as store:
        for number in range(6):
            store.execute(Cart, f"c{number}", "create", actor="ann")
            store.execute(Cart, f"c{number}", "add", product="tea", quantity=number + 1)
            store.execute(Cart, f"c{number}", "remove", product="tea", quantity=1)
        with pytest.raises(Exception, match="there are not 9"):
            store.execute(Cart, "c0", "remove", product="tea", quantity=9)
        yield store


def test_all_events_come_with_their_fields_as_json(spark: SparkSession, shop: EventStore) -> None:
    rows = shop.df(Cart, spark=spark).where("id = 'c3'").orderBy("version").collect()
    assert [(row.version, row.type, row.data) for row in rows] == [
        (1, "CartCreated", '{"owner":"somebody"}'),
        (2, "Added", '{"product":"tea","quantity":4}'),
        (3, "Removed", '{"product":"tea","quantity":1}'),
    ]
    (known,) = [each for each in shop.history(Cart, "c3") if each.version == 1]
    assert (rows[0].event_id, rows[0].command_id, rows[0].actor) == ("Cart/c3/1", known.command_id, "ann")
    assert (rows[0].partition, rows[0].offset) == (known.partition, known.offset)
    assert rows[0].time.timestamp() == known.time.timestamp()


def test_events_of_one_class_have_typed_columns(spark: SparkSession, shop: EventStore) -> None:
    added = shop.df(Cart, Added, spark=spark)
    assert dict(added.dtypes)["quantity"] == "bigint"
    total = added.groupBy("product").agg(F.sum("quantity").alias("total"), F.count("*").alias("n")).collect()
    assert [(row.product, row.total, row.n) for row in total] == [("tea", 21, 6)]
    assert shop.df(Cart, CheckedOut, spark=spark).count() == 0
    only = shop.df(Cart, Added, columns=["quantity", "id", "correlation_id"], spark=spark)
    (row,) = only.where("id = 'c2'").collect()
    (known,) = [each for each in shop.history(Cart, "c2") if each.type == "Added"]
    assert (only.columns, row.quantity, row.correlation_id) == (
        ["quantity", "id", "correlation_id"],
        3,
        known.command_id,
    )
    assert shop.df(Cart, columns=["type"], spark=spark).distinct().count() == 3


def test_events_can_be_read_as_a_stream(spark: SparkSession, shop: EventStore, tmp_path: Path) -> None:
    removed = shop.stream(Cart, Removed, spark=spark)
    query = (
        removed.writeStream.format("memory")
        .queryName("removed")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    try:
        assert spark.sql("SELECT sum(quantity) AS n FROM removed").first()["n"] == 6
    finally:
        spark.catalog.dropTempView("removed")


def test_older_versions_are_upcast(spark: SparkSession, event_broker: EmbeddedBroker) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    for version in (1, 2):
        with EventStore(name, broker=event_broker.bootstrap, partitions=1) as store:
            store.execute(priced(version), "p", "price", cents=100 * version)
    current = priced(2)
    (event,) = {schema.kind for schema in _events(current)}
    assert store.df(current, event, columns=["currency"], spark=spark).columns == ["currency"]
    rows = store.df(current, event, spark=spark).orderBy("version").collect()
    assert [(row.cents, row.currency, row.type_version) for row in rows] == [(100, "EUR", 1), (200, "USD", 2)]


def test_an_older_class_refuses_newer_events(spark: SparkSession, event_broker: EmbeddedBroker) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    with EventStore(name, broker=event_broker.bootstrap, partitions=1) as store:
        store.execute(priced(2), "p", "price", cents=100)
    older = priced(1)
    (event,) = {schema.kind for schema in _events(older)}
    for columns in (None, ["id"], ["cents"]):
        with pytest.raises(Exception, match=r"an event Priced of version 2 is in the log.*up to version 1"):
            store.df(older, event, columns=columns, spark=spark).collect()
    assert store.df(older, spark=spark).count() == 1


def _events(kind: type[Aggregate]):
    from headrace.events.aggregate import aggregate_schema

    return aggregate_schema(kind).events.values()


def priced(version: int) -> type[Aggregate]:
    """The same aggregate as an older and as a newer program has it."""
    namespace: dict[str, object] = {"Event": Event, "Aggregate": Aggregate}
    exec(OLDER if version == 1 else NEWER, namespace)
    kind = namespace["Price"]
    assert isinstance(kind, type)
    return kind


OLDER = """
class Priced(Event):
    cents: int

class Price(Aggregate):
    def price(self, cents: int):
        yield Priced(cents=cents)
    def on_priced(self, e: Priced): pass
"""
NEWER = """
class Priced(Event, version=2):
    cents: int
    currency: str
    def upcast_1(fields): return {**fields, "currency": "EUR"}

class Price(Aggregate):
    def price(self, cents: int):
        yield Priced(cents=cents, currency="USD")
    def on_priced(self, e: Priced): pass
"""


def test_invalid_columns_and_events_are_refused(spark: SparkSession, shop: EventStore) -> None:
    class Shipped(Event):
        time: str

    class Parcel(Aggregate):
        def on_shipped(self, e: Shipped) -> None: ...

    with Cluster.of(shop.broker) as cluster:
        open_topics(cluster, shop.name, "Parcel", 1)
    with pytest.raises(Misuse, match="Cart has no event Shipped"):
        shop.df(Cart, Shipped, spark=spark)
    with pytest.raises(Misuse, match="events have no column 'owner': choose from id, version"):
        shop.df(Cart, Added, columns=["product", "owner"], spark=spark)
    with pytest.raises(Misuse, match="name at least one column"):
        shop.df(Cart, columns=[], spark=spark)
    with pytest.raises(Misuse, match="a field 'time', which is also a metadata column"):
        shop.df(Parcel, Shipped, spark=spark)
