"""Which types values can be read as, checked before the first value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.values.errors import UnsupportedType

if TYPE_CHECKING:
    from collections.abc import Iterable

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
            raise UnsupportedType(
                f"{path or 'the value'}: two fields are named {name!r}; give each its own name"
            )
        seen.add(name)
