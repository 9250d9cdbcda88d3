"""The formats that values can have, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.columns.values.csv_values import CsvParser
from headrace.columns.values.errors import UnsupportedType
from headrace.columns.values.json_values import JsonParser
from headrace.columns.values.plain_values import RawParser, TextParser
from headrace.columns.values.supported_types import check_fields
from headrace.columns.values.time_rules import TimeRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from headrace.columns.values.parser import ValueParser

_OPTIONS: Final = {"json": set(), "csv": {"delimiter", "quote", "sep"}, "text": set(), "raw": set()}


def value_parser(
    format: str,  # noqa: A002 (the word that users write)
    type: pa.DataType,  # noqa: A002
    *,
    time_zone: str = "UTC",
    time_unit: str = "auto",
    options: Mapping[str, str] | None = None,
) -> ValueParser:
    """The parser of values of `format` that gives a column of `type`.

    JSON and CSV give structs; text gives strings and raw gives bytes, whatever `type` says. A time without an
    offset is one of `time_zone`, and a number counts since 1970 in `time_unit` ("s", "ms", "us", "ns", or
    "auto": by its size, see `time_rules`). CSV has the options `delimiter` (or `sep`) and `quote`, one
    character each. Raises `UnsupportedType` before any value is seen when the format cannot give that type.
    """
    options = dict(options or {})
    _check_options(format, options)
    if "sep" in options:  # Spark has both names
        options["delimiter"] = options.pop("sep")
    if format == "text":
        return TextParser()
    if format == "raw":
        return RawParser()
    check_fields(type, flat=format == "csv")
    rules = TimeRules.of(time_zone, time_unit)
    return CsvParser(type, rules, **options) if format == "csv" else JsonParser(type, rules)


def _check_options(format_: str, options: Mapping[str, str]) -> None:
    if format_ not in _OPTIONS:
        raise UnsupportedType(f"{format_!r} is not a format of values: use one of {', '.join(_OPTIONS)}")
    if unknown := sorted(set(options) - _OPTIONS[format_]):
        known = ", ".join(sorted(_OPTIONS[format_])) or "none"
        raise UnsupportedType(f"the format {format_} has no option {unknown[0]!r}; its options: {known}")
