"""Orders, and what the application must make of them: computed in one go, by hand."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PRODUCTS = ("bread", "cheese", "tea", "wine")
PARTITIONS = 3
TIMEOUT_S = 60
OUTPUTS = ("large_orders", "taxed", "revenue")
Document = dict[str, Any]


def order(number: int) -> Document:
    """The order of that number: ten of them a second."""
    at = BEGIN + timedelta(milliseconds=100 * number)
    product = PRODUCTS[number * 7 % len(PRODUCTS)]
    return {"number": number, "product": product, "amount": number * 37 % 1_000, "at": at.isoformat()}


def closing_orders() -> list[Document]:
    """Orders of a later day, one for each partition: with them all windows of today close."""
    at = BEGIN + timedelta(days=1)
    return [{"number": -1, "product": "tea", "amount": 0, "at": at.isoformat()} for _ in range(PARTITIONS)]


def expected(orders: Iterable[Document]) -> dict[str, list[str]]:
    """The documents of each output topic, sorted."""
    chosen = list(orders)
    large = [one for one in chosen if one["amount"] >= 500]
    sums: Counter[tuple[int, str]] = Counter()
    counts: Counter[tuple[int, str]] = Counter()
    for one in chosen:
        window = (int(datetime.fromisoformat(one["at"]).timestamp()) // 60 * 60, one["product"])
        sums[window] += one["amount"]
        counts[window] += 1
    revenue = [
        {"minute": minute, "product": product, "revenue": total, "orders": counts[minute, product]}
        for (minute, product), total in sums.items()
    ]
    taxed = [{"number": one["number"], "cents": one["amount"] * 19} for one in large]
    return {
        "large_orders": _sorted(map(_normal, large)),
        "taxed": _sorted(taxed),
        "revenue": _sorted(revenue),
    }


def found(bootstrap: str) -> dict[str, list[str]]:
    """The committed documents of each output topic, sorted."""
    return {topic: _sorted(map(_normal, read_committed(bootstrap, topic))) for topic in OUTPUTS}


def create_topic(bootstrap: str) -> None:
    """Make the topic of the orders, with as many replicas as the cluster thinks right."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(TIMEOUT_S)


def write(bootstrap: str, documents: Iterable[Document]) -> None:
    """Write orders in turn into the partitions, and return when all replicas have them."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number, document in enumerate(documents):
        producer.produce("orders", json.dumps(document).encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def read_committed(bootstrap: str, topic: str) -> Iterator[Document]:
    """Every committed document of a topic that is there now; none when there is no such topic yet."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    ended: set[int] = set()
    try:
        while len(ended) < len(partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{topic} could not be read to its end"
            if message.error() is None:
                yield json.loads(message.value())
            else:  # the end of a partition; errors that pass are librdkafka's own to handle
                ended.add(message.partition())
    finally:
        consumer.close()


def _normal(document: Document) -> Document:
    """The document with its time in one notation."""
    if "at" not in document:
        return document
    return {**document, "at": datetime.fromisoformat(document["at"]).timestamp()}


def _sorted(documents: Iterable[Document]) -> list[str]:
    return sorted(json.dumps(document, sort_keys=True) for document in documents)
