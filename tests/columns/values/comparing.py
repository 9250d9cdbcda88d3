"""Parsers asked about the same values, so that their answers can be compared."""

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.columns.values import value_parser
from headrace.columns.values.assembly import ReferenceValue, read_by_reference
from headrace.columns.values.json_parser import JsonReference
from headrace.columns.values.times import TimeRules


def fast(
    type_: pa.DataType, values: Sequence[bytes | None], time_zone: str = "UTC", time_unit: str = "auto"
) -> list[ReferenceValue]:
    """What the parser of whole columns says."""
    parsed = value_parser("json", type_, time_zone=time_zone, time_unit=time_unit).parse(
        pa.array(values, pa.binary())
    )
    parsed.values.validate(full=True)
    assert parsed.values.type == type_
    errors = parsed.errors.to_pylist() if parsed.errors is not None else [None] * len(values)
    return [ReferenceValue(plain(value), error) for value, error in zip(parsed.values, errors, strict=True)]


def reference(
    type_: pa.DataType, values: Sequence[bytes | None], time_zone: str = "UTC", time_unit: str = "auto"
) -> list[ReferenceValue]:
    """What the parser of single values says."""
    parser = JsonReference(type_, TimeRules.of(time_zone, time_unit))
    answers = [
        ReferenceValue(None, None) if value is None else read_by_reference(parser, value) for value in values
    ]
    column = pa.array([each.value for each in answers], type_)
    return [ReferenceValue(plain(value), each.error) for value, each in zip(column, answers, strict=True)]


def plain(scalar: Any) -> Any:
    """A value as Python objects that are equal when the values are, NaN and times beyond Python's too."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: plain(scalar[name]) for name in scalar}
    if isinstance(scalar, pa.MapScalar):
        return (
            [(plain(entry["key"]), plain(entry["value"])) for entry in scalar.values] if len(scalar) else []
        )
    if isinstance(scalar, pa.ListScalar):
        return [plain(item) for item in scalar.values]
    if isinstance(scalar, (pa.TimestampScalar, pa.Date32Scalar)):
        return scalar.value
    value = scalar.as_py()
    return repr(value) if isinstance(value, float) and (math.isnan(value) or value == 0) else value
