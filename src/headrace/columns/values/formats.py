"""The formats that values can have, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.values.assembly import read_by_reference, with_results
from headrace.columns.values.csv_parser import CsvParser
from headrace.columns.values.json_parser import JsonParser
from headrace.columns.values.times import TimeRules
from headrace.columns.values.tokens import Parsed, UnsupportedType, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.columns.values.tokens import ValueParser


_LEAVES: Final = (
    pt.is_boolean,
    pt.is_int8,
    pt.is_int16,
    pt.is_int32,
    pt.is_int64,
    pt.is_float32,
    pt.is_float64,
    pt.is_decimal128,
    pt.is_string,
    pt.is_binary,
    pt.is_date32,
)


def check_fields(type_: pa.DataType, *, flat: bool) -> None:
    """Raise `UnsupportedType` unless values can be read as `type_`; if `flat`, its fields have no parts."""
    if not pt.is_struct(type_):
        raise UnsupportedType(f"values of this format are read as a struct of fields, not as {type_}")
    _check_struct(type_, "", flat=flat)


def _check_struct(type_: pa.DataType, path: str, *, flat: bool) -> None:
    _check_names((field.name for field in type_), path)
    for field in type_:
        _check(field.type, f"{path}.{field.name}" if path else field.name, flat=flat)


def _check(type_: pa.DataType, path: str, *, flat: bool) -> None:
    if any(matches(type_) for matches in _LEAVES) or (pt.is_timestamp(type_) and type_.unit == "us"):
        return
    if flat:
        raise UnsupportedType(
            f"{path}: a CSV field cannot be read as {type_}; use a type without parts, or JSON"
        )
    if pt.is_struct(type_):
        _check_struct(type_, path, flat=flat)
    elif pt.is_list(type_):
        _check(type_.value_type, f"{path}[]", flat=flat)
    elif pt.is_map(type_) and pt.is_string(type_.key_type):
        _check(type_.item_type, f"{path}{{}}", flat=flat)
    else:
        raise UnsupportedType(f"{path}: {type_} cannot be read from JSON; read it as a string and convert it")


def _check_names(names: Iterable[str], path: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UnsupportedType(f"{path or 'the value'}: two fields are named {name!r}: rename one of them")
        seen.add(name)


class TextParser:
    """Parses values as UTF-8 text."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The texts; invalid UTF-8 is an error."""
        try:
            return Parsed(values.cast(pa.string()), None)
        except pa.ArrowInvalid:
            present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            results = [read_by_reference(self, value.as_py()) for value in values if value.is_valid]
            return with_results(pa.nulls(len(values), pa.string()), present, results)

    def read(self, value: bytes) -> str:
        """One text; raises `BadValue`."""
        return decoded(value)


class RawParser:
    """Returns values as they are."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The same bytes."""
        return Parsed(values, None)


_OPTIONS: Final = {"json": set(), "csv": {"delimiter", "quote", "sep"}, "text": set(), "raw": set()}


def value_parser(
    format: str,  # noqa: A002 (the word that users write)
    type: pa.DataType,  # noqa: A002
    *,
    time_zone: str = "UTC",
    time_unit: str = "auto",
    options: Mapping[str, str] | None = None,
) -> ValueParser:
    """The parser of values of `format` that returns a column of `type`.

    JSON and CSV return structs; text returns strings and raw returns bytes, independent of `type`. A time
    without an offset is one of `time_zone`, and a number counts since 1970 in `time_unit` ("s", "ms", "us",
    "ns", or "auto": by its size, see `times`). CSV has the options `delimiter` (or `sep`) and `quote`, one
    character each. Raises `UnsupportedType` before any value is read when the format cannot return that type.
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
