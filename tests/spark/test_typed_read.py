"""Typed values: parsed columns, and beside each value that did not parse its bytes and the reason."""

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from tests.spark.records import create_topic, produce, read

# The first of them waits for the JVM.
pytestmark = pytest.mark.timeout(300)

DDL = "id long NOT NULL, name string COMMENT 'is NOT NULL', tags array<string>"


@pytest.fixture
def orders(bootstrap: str) -> str:
    """Two good values, a tombstone, and two that are no JSON of the schema."""
    create_topic(bootstrap, "orders")
    good = [json.dumps({"id": number, "name": f"n{number}", "tags": ["a"]}) for number in range(2)]
    produce(bootstrap, "orders", [*good, None, "{broken", '{"id": "seven"}'], key="k")
    return bootstrap


def test_json_values_become_columns(spark: SparkSession, orders: str) -> None:
    rows = read(spark, orders, "orders", valueFormat="json", valueSchema=DDL)
    assert rows.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "error",
    ]
    value_type = "struct<id:bigint,name:string,tags:array<string>>"
    assert rows.schema["value"].dataType.simpleString() == value_type
    found = rows.select("offset", "value.*", "error").orderBy("offset").collect()
    assert [(row.id, row.name, row.tags) for row in found[:2]] == [(0, "n0", ["a"]), (1, "n1", ["a"])]
    assert [row.error for row in found[:3]] == [None, None, None]
    assert found[2].id is None
    assert [bytes(row.error.raw) for row in found[3:]] == [b"{broken", b'{"id": "seven"}']
    assert all(row.error.reason for row in found[3:])


def test_only_the_errors_of_only_some_columns(spark: SparkSession, orders: str) -> None:
    schema = StructType().add("id", LongType(), nullable=False).add("name", StringType())
    options = {"valueFormat": "json", "valueSchema": schema.json(), "errorsOnly": "true"}
    rows = read(spark, orders, "orders", columns="error,offset", **options)
    assert rows.columns == ["error", "offset"]
    assert [(row.offset, bytes(row.error.raw)[:2]) for row in rows.collect()] == [(3, b"{b"), (4, b'{"')]


def test_csv_values_become_columns(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "lines")
    produce(bootstrap, "lines", ["1;tea", "x;coffee"])
    csv = {"valueFormat": "csv", "valueSchema": "id int, name string", "sep": ";"}
    rows = read(spark, bootstrap, "lines", **csv).select("value.*", "error.raw").collect()
    assert (rows[0].id, rows[0].name, rows[0].raw) == (1, "tea", None)
    assert (rows[1].id, bytes(rows[1].raw)) == (None, b"x;coffee")


def test_text_values_are_strings(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "lines")
    produce(bootstrap, "lines", ["grüße", b"\xff"])
    rows = read(spark, bootstrap, "lines", valueFormat="text", columns="value,error").collect()
    assert rows[0].value == "grüße"
    assert rows[1].value is None
    assert bytes(rows[1].error.raw) == b"\xff"


def test_headers_become_columns_beside_typed_values(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "events")
    produce(bootstrap, "events", ['{"id": 1}'], headers=[("kind", b"a"), ("n", b"7"), ("kind", b"b")])
    produce(bootstrap, "events", ['{"id": 2}'], headers=[("kind", None), ("n", b"many")])
    produce(bootstrap, "events", ['{"id": 3}'])
    options = {"valueFormat": "json", "valueSchema": "id long", "headerColumns": "kind, n int"}
    rows = read(spark, bootstrap, "events", **options)
    assert rows.columns[-3:] == ["error", "kind", "n"]
    found = rows.orderBy("offset").selectExpr("value.id", "kind", "n").collect()
    assert [tuple(row) for row in found] == [(1, "b", 7), (2, None, None), (3, None, None)]
    chosen = read(spark, bootstrap, "events", whereHeaders='{"n": ["7", "8"]}', **options)
    assert [(row.value.id, row.kind) for row in chosen.collect()] == [(1, "b")]


def test_headers_cannot_be_named_where_rows_are_written(spark: SparkSession, bootstrap: str) -> None:
    rows = spark.sql("SELECT 'v' AS value").write.format("headrace").mode("append")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "events", "headerColumns": "kind"}
    with pytest.raises(PySparkException, match="has no option 'headercolumns'"):
        rows.options(**options).save()


def test_the_type_of_a_value_must_be_known(spark: SparkSession, orders: str) -> None:
    with pytest.raises(PySparkException, match="add value to the option columns"):
        read(spark, orders, "orders", valueFormat="json", valueSchema="id long", columns="error").collect()
