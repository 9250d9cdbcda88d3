"""Record batches that cannot be read: a row with the reason, or an error that names them."""

import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.protocol.batch import build_batch
from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import WireClient, batch_of
from tests.spark.records import create_topic, read

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def orders(headrace_broker: EmbeddedBroker) -> str:
    """A good record, a batch of two records that are none, and a good record. Apache Kafka refuses it."""
    bootstrap = headrace_broker.bootstrap
    create_topic(bootstrap, "orders")
    now_ms = int(time.time() * 1000)
    bad = build_batch(b"no records at all here", 2, base_timestamp=now_ms, max_timestamp=now_ms)
    good = [batch_of(b'{"id": %d}' % number, timestamp=now_ms) for number in (1, 2)]
    with WireClient(bootstrap) as client:
        for batch in (good[0], bytes(bad), good[1]):
            client.produce("orders", batch)
    return bootstrap


def test_an_unreadable_batch_is_a_row_with_the_reason(spark: SparkSession, orders: str) -> None:
    rows = read(spark, orders, "orders", valueFormat="json", valueSchema="id int").orderBy("offset").collect()
    assert [(row.offset, None if row.value is None else row.value.id) for row in rows] == [
        (0, 1),
        (1, None),
        (3, 2),
    ]
    reason = "the record batch with the offsets 1 to 2 cannot be read: "
    assert rows[1].error.reason.startswith(reason)
    assert rows[1].error.raw is None


def test_raw_values_have_the_reason_too_where_it_is_asked_for(spark: SparkSession, orders: str) -> None:
    rows = read(spark, orders, "orders", columns="offset,value,error").orderBy("offset").collect()
    assert [row.error is None for row in rows] == [True, False, True]
    (error,) = read(spark, orders, "orders", errorsOnly="true").collect()
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 1)


def test_without_a_column_for_the_reason_the_error_names_the_batch(spark: SparkSession, orders: str) -> None:
    with pytest.raises(PySparkException, match="orders/0: the record batch with the offsets 1 to 2"):
        read(spark, orders, "orders").collect()
