"""Which columns a source has, and of what type."""

import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType

from headrace.spark.errors import BadColumns, BadOption
from headrace.spark.layout import Layout
from headrace.spark.options import Options
from headrace.spark.source import KNOWN


def layout(**options: str) -> Layout:
    return Layout.of(Options(options, known=KNOWN))


def ddl(**options: str) -> str:
    schema = layout(valueFormat="json", **options).schema()
    assert isinstance(schema, str)
    return schema


def test_columns_come_in_the_order_that_was_asked_for() -> None:
    schema = layout(columns="timestamptype, value").schema()
    assert isinstance(schema, StructType)
    assert schema.simpleString() == "struct<timestampType:int,value:binary>"


def test_headers_are_there_when_they_are_asked_for() -> None:
    assert "headers" not in layout().columns
    assert "headers" in layout(includeHeaders="true").columns
    assert layout(columns="headers").columns == ("headers",)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("id long", "struct<id long>"),
        ("struct<id: long>", "struct<id: long>"),
        ("id long NOT NULL, at timestamp not  null", "struct<id long, at timestamp>"),
        ("`a NOT NULL` int COMMENT 'it\\'s NOT NULL'", "struct<`a NOT NULL` int COMMENT 'it\\'s NOT NULL'>"),
    ],
)
def test_a_schema_in_ddl_goes_to_spark_as_ddl_with_every_field_nullable(given: str, value: str) -> None:
    assert (
        ddl(valueSchema=given, columns="value,error")
        == f"`value` {value}, `error` struct<reason:string,raw:binary>"
    )


def test_a_schema_in_json_becomes_nullable_all_the_way_down() -> None:
    inner = StructType().add("n", IntegerType(), nullable=False)
    given = (
        StructType()
        .add("list", ArrayType(inner, containsNull=False), nullable=False)
        .add("map", MapType(StringType(), inner, valueContainsNull=False))
    )
    schema = layout(valueFormat="json", valueSchema=given.json(), columns="value").schema()
    assert isinstance(schema, StructType)
    assert '"nullable":false' not in schema.json()
    assert 'Null":false' not in schema.json()
    assert schema["value"].dataType.simpleString() == given.simpleString()


@pytest.mark.parametrize("given", ["{", '{"type": "long"}', '{"fields": 3}'])
def test_json_that_is_no_schema_is_refused(given: str) -> None:
    with pytest.raises(BadOption, match="not the JSON of a StructType"):
        layout(valueFormat="json", valueSchema=given).schema()


def test_a_schema_of_the_user_may_only_choose_columns() -> None:
    raw = layout()
    raw.check(StructType().add("value", "binary").add("offset", "long"))
    with pytest.raises(BadColumns, match="no column 'amount'"):
        raw.check(StructType().add("amount", "double"))
    with pytest.raises(BadColumns, match="the column value is binary, not string"):
        raw.check(StructType().add("value", "string"))


@pytest.mark.parametrize(
    ("format_", "given", "message"),
    [
        ("json", {"timeZone": "Mars/Olympus"}, "timeZone 'Mars/Olympus' is not known"),
        ("json", {"delimiter": ";"}, "delimiter has no effect for valueFormat json"),
        ("csv", {"quote": "''"}, "quote is one ASCII character"),
    ],
)
def test_what_a_parser_would_refuse_is_refused_before_a_task_starts(
    format_: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(BadOption, match=message):
        layout(valueFormat=format_, valueSchema="id long", **given)


def test_headers_that_are_named_are_columns_before_the_heartbeat() -> None:
    named = layout(headerColumns="ce_type, ce_sequence LONG,`content type` binary, n int", idleTimeout="1s")
    assert named.columns[-5:] == ("ce_type", "ce_sequence", "content type", "n", "heartbeat")
    schema = named.schema()
    assert isinstance(schema, StructType)
    assert [schema[name].dataType.simpleString() for name in named.columns[-5:-1]] == [
        "string",
        "bigint",
        "binary",
        "int",
    ]


def test_columns_chooses_among_named_headers_too() -> None:
    chosen = layout(headerColumns="a,b long", columns="b,offset").schema()
    assert isinstance(chosen, StructType)
    assert chosen.simpleString() == "struct<b:bigint,offset:bigint>"
    assert (
        ddl(valueSchema="id long", headerColumns="a", columns="a,value")
        == "`a` string, `value` struct<id long>"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "cannot be read from '' on"),
        ("a,,b", "cannot be read from ',b' on"),
        ("a string b", "cannot be read from"),
        ("a double", "has no type 'double' for 'a'"),
        ("Value", "'Value', and value is a column of the source"),
        ("a,b,A int", "names 'A', and a too"),
    ],
)
def test_named_headers_that_cannot_be_columns_are_refused(given: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        layout(headerColumns=given)


@pytest.mark.parametrize("given", ["", "[]", "{}", '{"a": []}', '{"a": "b"}', '{"a": [1]}', "a=b"])
def test_a_choice_by_headers_that_cannot_be_read_is_refused(given: str) -> None:
    with pytest.raises(BadOption, match="write names of headers and lists of texts as JSON"):
        layout(whereHeaders=given)
    assert layout(whereHeaders='{"a": ["b", "c"]}').wanted_headers == {"a": ("b", "c")}
