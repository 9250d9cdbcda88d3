"""Rows as records, with the text that Spark's `to_json` has."""

import json
import re
from datetime import UTC
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headrace.columns.buffers import InvalidRows
from headrace.columns.documents import RecordForm
from headrace.streams.topic import Topic
from headrace.streams.view import View

SCHEMA = pa.schema(
    [
        ("a text", pa.string()),
        ("whole", pa.int64()),
        ("small", pa.int8()),
        ("flag", pa.bool_()),
        ("time", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 9)),
        ("one.half", pa.float64()),
        ("part", pa.float32()),
        ("bytes", pa.binary()),
        ("_deleted", pa.bool_()),
    ]
)
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\/\b\f\n\r\t\x00\x1f\x7f'), max_size=12)
ROWS = st.tuples(
    st.none() | TEXTS,
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-1000, 1000),
    st.none() | st.integers(-128, 127),
    st.none() | st.booleans(),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.dates(),
    st.none() | st.decimals(-(10**10), 10**10, places=9) | st.decimals(-1, 1, places=9),
    st.none() | st.floats() | st.floats(-1e8, 1e8) | st.decimals(-999, 999, places=2).map(float),
    st.none() | st.floats(width=32),
    st.none() | st.binary(max_size=7),
    st.none() | st.booleans(),
)
TOPICS = (
    Topic(name="plain"),
    Topic(name="by-number", key=("whole",)),
    Topic(name="by-text", key=("a text",)),
    Topic(name="by-several", key=("a text", "time", "price", "day", "bytes")),
    View.of("by-flag", key=["flag"]),
    View.of("by-bytes", key=["bytes"]),
    View.of("by-two", key=["a text", "small"]),
)


def of_spark(frame: DataFrame, topic: Topic) -> DataFrame:
    records = topic.records(frame)
    key = "key" if "key" in records.columns else "null"
    return records.selectExpr(f"cast({key} as binary) as key", "cast(value as binary) as value")


def of_ours(frame: DataFrame, rows: pa.Table, topic: Topic) -> list[Any]:
    form = topic.form(frame)
    assert form is not None
    return [
        (row.get("key"), same_numbers(row["value"]))
        for batch in form.records(rows.to_batches(max_chunksize=10))
        for row in batch.to_pylist()
    ]


def same_numbers(document: bytes | None) -> bytes | None:
    """The document as it is, but for its floating-point numbers: Java may write a digit more."""
    if document is None:
        return None
    document = re.sub(rb'(?<="one.half":)[^,}"n]+', lambda text: repr(float(text[0])).encode(), document)
    return re.sub(rb'(?<="part":)[^,}"n]+', lambda text: repr(np.float32(text[0])).encode(), document)


@pytest.mark.timeout(300)
@given(rows=st.lists(ROWS, min_size=25, max_size=25))
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
def test_records_are_those_that_spark_would_write(spark: SparkSession, rows: list[Any]) -> None:
    columns: Any = zip(*rows, strict=True)
    table = pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )
    frame = spark.createDataFrame(table)
    expected = reduce(DataFrame.unionAll, [of_spark(frame, topic) for topic in TOPICS]).toArrow().to_pylist()
    made = [record for topic in TOPICS for record in of_ours(frame, table, topic)]
    assert [(row["key"], same_numbers(row["value"])) for row in expected] == made


def written(column: pa.Array) -> list[bytes]:
    (made,) = RecordForm(columns=('a "name"\x1f',)).records([pa.record_batch({"column0": column})])
    return [document.split(b":", 1)[1][:-1] for document in made["value"].to_pylist()]


def test_names_are_escaped_as_values_are() -> None:
    (made,) = RecordForm(columns=('a "name"\x1f',)).records([pa.record_batch({"column0": [1]})])
    assert made["value"].to_pylist() == [b'{"a \\"name\\"\\u001F":1}']


def test_floating_point_numbers_have_the_form_of_java() -> None:
    numbers = [1.0, 100.0, 0.001, 9.99e-4, 9999999.0, 1e7, 1.5e300, -0.0, 123456.789, 0.0123]
    beyond = [float("nan"), float("inf"), float("-inf")]
    texts = b"1.0 100.0 0.001 9.99E-4 9999999.0 1.0E7 1.5E300 -0.0 123456.789 0.0123".split()
    assert written(pa.array(numbers)) == texts
    assert written(pa.array(beyond)) == [b'"NaN"', b'"Infinity"', b'"-Infinity"']


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floating_point_numbers_read_back_as_the_same(numbers: list[float]) -> None:
    assert [float(text).hex() for text in written(pa.array(numbers))] == [number.hex() for number in numbers]


def test_times_before_christ_and_after_9999_have_a_sign() -> None:
    seconds = [253402300799, 253402300800, -62135596801, -62167219201, -99999999999999 // 1000]
    texts = [text.strip(b'"')[:-17] for text in written(pa.array(seconds, pa.timestamp("s", "UTC")))]
    assert texts == [b"9999-12-31", b"+10000-01-01", b"0000-12-31", b"-0001-12-31", b"-1199-02-15"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    text = pa.array([b"a\xffb", None, b"\xc3\xa9"]).view(pa.string())
    assert written(text) == ['"a\ufffdb"'.encode(), b"null", '"é"'.encode()]


def test_a_slice_of_columns_is_written_as_such() -> None:
    rows = pa.record_batch({"n": [1, 2, 3], "flag": [True, None, False], "text": ["a", "b", "c"]})
    (made,) = RecordForm(columns=("n", "flag", "text")).records([rows.slice(1, 2)])
    assert [json.loads(text) for text in made["value"].to_pylist()] == rows.slice(1, 2).to_pylist()


def test_columns_behind_those_that_were_declared_are_left_out() -> None:
    (made,) = RecordForm(columns=("n",)).records([pa.record_batch({"column0": [1], "beside": [2]})])
    assert made["value"].to_pylist() == [b'{"n":1}']


def test_what_has_parts_is_refused() -> None:
    with pytest.raises(InvalidRows, match="list"):
        written(pa.array([[1]]))


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ("id long, parts array<long>", ("id",)),
        ("id long, at timestamp_ntz", ("id",)),
        ("id double, name string", ("id",)),
        ("id float, name string", ("id", "name")),
        ("at timestamp, name string", ("at",)),
    ],
)
def test_rows_that_our_writer_does_not_know_are_left_to_spark(
    spark: SparkSession, schema: str, key: tuple[str, ...]
) -> None:
    assert Topic(name="out", key=key).form(spark.createDataFrame([], schema)) is None


def test_times_of_another_zone_are_left_to_spark(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert Topic(name="out").form(spark.createDataFrame([], "at timestamp")) is None
        assert Topic(name="out").form(spark.createDataFrame([], "id long")) is not None
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
