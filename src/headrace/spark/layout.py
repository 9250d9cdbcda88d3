"""The columns of a source: their names, types and order.

By default they are the columns of Spark's Kafka source. With a `valueFormat`, the column `value` is typed and
a column `error` has the reason and the bytes of each value that did not parse. A stream that can be idle
(`idleTimeout`) has a last column `heartbeat`: a time in the rows that carry nothing else.

With `headerColumns`, headers are columns too, and `whereHeaders` selects records by their headers:

    .option("headerColumns", "ce_type, ce_sequence long, `content type` binary")
    .option("whereHeaders", '{"ce_type": ["Added", "Removed"]}')

A name without a type is text. Each column has the name of its header. A record is skipped before its value is
parsed, unless each of these headers has one of the given texts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Self
from zoneinfo import ZoneInfo

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.spark.errors import BadColumns, BadOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.spark.options import Options
    from headrace.spark.row_checks import RowCheck


HEADER_COLUMNS: Final = "headerColumns"
WHERE_HEADERS: Final = "whereHeaders"
TYPES: Final = {
    "string": "string",
    "binary": "binary",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
}
"""The types of headers, and Spark's names of them."""

_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s,`]+))(?:\s+(\w+))?\s*(?:,|$)")


def header_types(options: Options, taken: Iterable[str]) -> dict[str, str]:
    """The headers that are columns, and their types; `taken` are the names of other columns."""
    text = options.text(HEADER_COLUMNS)
    found: dict[str, str] = {}
    if text is None:
        return found
    spelled = {name.lower(): f"{name} is a column of the source" for name in taken}
    for name, word in _written(text):
        if word.lower() not in TYPES:
            raise BadOption(
                f"{HEADER_COLUMNS} has no type {word!r} for {name!r}: write string, binary, int or long, "
                "and cast afterwards"
            )
        if name.lower() in spelled:
            raise BadOption(
                f"{HEADER_COLUMNS} names {name!r}, and {spelled[name.lower()]}: Spark cannot tell them "
                "apart. Read such a header from the column headers, with includeHeaders"
            )
        spelled[name.lower()] = f"{name} too"
        found[name] = TYPES[word.lower()]
    return found


def wanted_headers(options: Options) -> dict[str, tuple[str, ...]]:
    """The headers that select records, each with the accepted texts."""
    text = options.text(WHERE_HEADERS)
    if text is None:
        return {}
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    if not isinstance(read, dict) or not read or not all(map(_is_choice, read.values())):
        raise BadOption(
            f"{WHERE_HEADERS} is {text!r}: write names of headers and lists of texts as JSON, such as "
            '{"ce_type": ["Added", "Removed"]}'
        )
    return {name: tuple(texts) for name, texts in read.items()}


def _is_choice(texts: object) -> bool:
    return isinstance(texts, list) and bool(texts) and all(isinstance(each, str) for each in texts)


def _written(text: str) -> list[tuple[str, str]]:
    """Names and types as the user wrote them."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(text) or not pairs:
        match = _COLUMN.match(text, position)
        if match is None:
            raise BadOption(
                f"{HEADER_COLUMNS} cannot be read from {text[position:]!r} on: separate names of headers by "
                "commas, each with its type unless that is string: ce_type, ce_sequence long"
            )
        pairs.append((match[1] or match[2], match[3] or "string"))
        position = match.end()
    return pairs


KEY, VALUE, HEADERS, ERROR, PULSE = "key", "value", "headers", "error", "heartbeat"

HEADER_TYPE: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
ERROR_TYPE: Final = StructType().add("reason", StringType()).add("raw", BinaryType())

COLUMN_TYPES: Final[dict[str, DataType]] = {
    KEY: BinaryType(),
    VALUE: BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: HEADER_TYPE,
    ERROR: ERROR_TYPE,
    PULSE: TimestampType(),
}

HEADER_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
}

FORMATS: Final = {word: word for word in ("raw", "text", "json", "csv")}
WITH_SCHEMA: Final = ("json", "csv")
TIME_UNITS: Final = ("auto", "s", "ms", "us", "ns")
PARSER_OPTIONS: Final = {
    "timeZone": "time_zone",
    "timeUnit": "time_unit",
    "delimiter": "delimiter",
    "sep": "delimiter",
    "quote": "quote",
}
"""Options of values, and the parsers' names of them."""

_NOT_NULL = re.compile(r"""(`[^`]*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\s+NOT\s+NULL\b""", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a source."""

    columns: tuple[str, ...]
    value_format: str = "raw"
    value_schema: str = ""
    """The type of a typed value, as DDL or as a StructType's JSON."""
    errors_only: bool = False
    parser_options: Mapping[str, str] = field(default_factory=dict)
    header_types: Mapping[str, str] = field(default_factory=dict)
    """The headers that are columns, by their names: Spark's name of each type."""
    wanted_headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The accepted texts of these headers; other records are skipped."""
    checks: tuple[RowCheck, ...] = ()
    """Checks of records that parse; one that fails makes the record an error."""

    @classmethod
    def of(cls, options: Options) -> Self:
        """The layout that the options describe."""
        value_format = options.choice("valueFormat", FORMATS, default="raw")
        errors_only = options.flag("errorsOnly", default=False)
        named = header_types(options, COLUMN_TYPES)
        return cls(
            columns=_columns(options, named, typed=value_format != "raw" or errors_only),
            value_format=value_format,
            value_schema=_value_schema(options, value_format),
            errors_only=errors_only,
            parser_options=_parser_options(options, value_format),
            header_types=named,
            wanted_headers=wanted_headers(options),
            checks=_checks(options, value_format),
        )

    def schema(self) -> StructType | str:
        """The schema for Spark: as DDL if the user wrote DDL, which only Spark can parse."""
        if self.value_format in WITH_SCHEMA and not _is_json(self.value_schema):
            return self._ddl()
        return StructType([StructField(name, self._type(name)) for name in self.columns])

    def value_type(self, schema: StructType) -> DataType:
        """The type that values are parsed into; `schema` is what Spark made of this layout's schema."""
        if self.value_format == "text":
            return StringType()
        if _is_json(self.value_schema):
            return _read_type(self.value_schema)
        if VALUE in schema.names:
            return schema[VALUE].dataType
        raise BadOption(
            "the column error needs the type of the values: add value to the option columns, "
            "or give valueSchema as the JSON of a StructType"
        )

    def check(self, schema: StructType) -> None:
        """Refuse a schema, given with `.schema(…)`, that is not one of this layout."""
        for wanted in schema.fields:
            if wanted.name not in self.columns:
                raise BadColumns(
                    f"the source has no column {wanted.name!r}: it has {', '.join(self.columns)}"
                )
            struct_value = wanted.name == VALUE and self.value_format in WITH_SCHEMA
            if not struct_value and wanted.dataType != self._type(wanted.name):
                type_name = self._type(wanted.name).simpleString()
                raise BadColumns(
                    f"the column {wanted.name} is {type_name}, not {wanted.dataType.simpleString()}: "
                    "leave out .schema(…), and cast afterwards"
                )

    def _type(self, name: str) -> DataType:
        if name in self.header_types:
            return HEADER_TYPES[self.header_types[name]]
        if name != VALUE or self.value_format == "raw":
            return COLUMN_TYPES[name]
        return StringType() if self.value_format == "text" else _read_type(self.value_schema)

    def _ddl(self) -> str:
        inner = self.value_schema.strip()
        value = inner if inner.lower().startswith("struct<") else f"struct<{inner}>"
        # A value or any of its fields may be missing, so nothing may be declared as not null.
        value = _NOT_NULL.sub(lambda match: match[1] or "", value)
        types = {name: column.simpleString() for name, column in COLUMN_TYPES.items()}
        types |= {VALUE: value, **self.header_types}
        return ", ".join(f"`{name}` {types[name]}" for name in self.columns)


def _columns(options: Options, named: Iterable[str], *, typed: bool) -> tuple[str, ...]:
    with_headers = options.flag("includeHeaders", default=False)
    absent = {PULSE: options.text("idleTimeout") is None}
    unasked = {ERROR: not typed, HEADERS: not with_headers}
    left_out = {name for name, is_absent in {**absent, **unasked}.items() if is_absent}
    of_source = (*(name for name in COLUMN_TYPES if name != PULSE), *named, PULSE)
    text = options.text("columns")
    if text is None:
        return tuple(name for name in of_source if name not in left_out)
    known = {name.lower(): name for name in of_source if not absent.get(name)}
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name.lower() not in known:
            close = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(known.values())}"
            raise BadOption(f"columns names {name!r}, which is not a column of the source: {hint}")
    return tuple(known[name.lower()] for name in names)


def _value_schema(options: Options, value_format: str) -> str:
    if value_format in WITH_SCHEMA:
        hint = f'valueFormat {value_format} needs the columns of a value, for example "id long, name string"'
        return options.required("valueSchema", hint)
    if options.text("valueSchema") is not None:
        raise BadOption(
            f"valueSchema has no effect for valueFormat {value_format}: leave it out, or use json or csv"
        )
    return ""


def _parser_options(options: Options, value_format: str) -> dict[str, str]:
    """The options of the value parser, checked before a task starts."""
    found = {name: value for name in PARSER_OPTIONS if (value := options.text(name)) is not None}
    for name, value in found.items():
        if name == "timeZone":
            _check_zone(value)
        elif name == "timeUnit":
            if value not in TIME_UNITS:
                raise BadOption(f"timeUnit is {value!r}: write {', '.join(TIME_UNITS)}")
        elif value_format != "csv":
            raise BadOption(f"{name} has no effect for valueFormat {value_format}: leave it out, or use csv")
        elif len(value) != 1 or not value.isascii() or value in "\r\n":
            raise BadOption(f"{name} is one ASCII character, not {value!r}")
    return {PARSER_OPTIONS[name]: value for name, value in found.items()}


def _checks(options: Options, value_format: str) -> tuple[RowCheck, ...]:
    from headrace.spark.row_checks import EVENT_TIME, EventTimeGuard

    guard = EventTimeGuard.from_options(options)
    if guard is not None and value_format not in WITH_SCHEMA:
        raise BadOption(f"{EVENT_TIME} names a field of typed values: set valueFormat to json or csv")
    return () if guard is None else (guard,)


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadOption(f"timeZone {name!r} is not known: use a name such as Europe/Berlin or UTC") from None


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _read_type(text: str) -> StructType:
    try:
        read = StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise BadOption(f"valueSchema is not the JSON of a StructType: {fault!r}") from fault
    nullable = _nullable(read)
    assert isinstance(nullable, StructType)
    return nullable


def _nullable(given: DataType) -> DataType:
    """The type with every part of it nullable."""
    match given:
        case StructType():
            return StructType(
                [StructField(part.name, _nullable(part.dataType), True, part.metadata) for part in given]
            )
        case ArrayType():
            return ArrayType(_nullable(given.elementType), True)
        case MapType():
            return MapType(given.keyType, _nullable(given.valueType), True)
    return given
