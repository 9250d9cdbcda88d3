"""JSON values one at a time: what the fast path must agree with, and where every error message comes from.

Which JSON may become which type is what Spark's `from_json` says; where this reader is stricter, the
documentation names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.types as pt

from headrace.columns.values.errors import BadValue, mismatch, shortened
from headrace.columns.values.json_cursor import Cursor
from headrace.columns.values.leaf_reference import leaf_reader
from headrace.columns.values.tokens import NULL
from headrace.columns.values.utf8 import decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from headrace.columns.values.time_rules import TimeRules

    Reader: TypeAlias = Callable[[Cursor, str], Any]


class JsonReference:
    """Reads values of one type, one at a time."""

    def __init__(self, type_: pa.DataType, rules: TimeRules) -> None:
        self._read = _reader(type_, rules)

    def read(self, value: bytes) -> Any:
        """The value as Python objects that Arrow takes; `BadValue` says what is wrong with it and where."""
        try:
            return self._read_whole(Cursor(decoded(value)))
        except RecursionError:
            raise BadValue("JSON that is nested too deeply to be read") from None

    def _read_whole(self, cursor: Cursor) -> Any:
        if not cursor.here:
            raise BadValue("not JSON: the value is empty")
        read = self._read(cursor, "")
        cursor.skip_space()
        if cursor.here:
            raise cursor.fault("expected nothing more")
        if read is None:
            raise BadValue("null is not an object")
        return read


def _reader(type_: pa.DataType, rules: TimeRules) -> Reader:
    if pt.is_struct(type_):
        return _struct_reader({field.name: _reader(field.type, rules) for field in type_})
    if pt.is_map(type_):
        return _map_reader(_reader(type_.item_type, rules))
    if pt.is_list(type_):
        return _list_reader(_reader(type_.value_type, rules))
    return _leaf_reader(type_, rules)


def _struct_reader(readers: dict[str, Reader]) -> Reader:
    def read(cursor: Cursor, path: str) -> dict[str, Any] | None:
        if cursor.here != "{":
            _expect_null(cursor, path, "object")
            return None
        fields: dict[str, Any] = dict.fromkeys(readers)
        for _ in cursor.members("}"):
            name = cursor.key()
            if reader := readers.get(name):
                fields[name] = reader(cursor, f"{path}.{name}" if path else name)
            else:
                cursor.token()
        return fields

    return read


def _map_reader(reader: Reader) -> Reader:
    def read(cursor: Cursor, path: str) -> list[tuple[str, Any]] | None:
        if cursor.here != "{":
            _expect_null(cursor, path, "object")
            return None
        entries = []
        for _ in cursor.members("}"):
            name = cursor.key()
            _check_encodable(name, f"a name in {path}")
            entries.append((name, reader(cursor, f"{path}.{name}")))
        return entries

    return read


def _list_reader(reader: Reader) -> Reader:
    def read(cursor: Cursor, path: str) -> list[Any] | None:
        if cursor.here != "[":
            _expect_null(cursor, path, "array")
            return None
        items: list[Any] = []
        for _ in cursor.members("]"):
            items.append(reader(cursor, f"{path}[{len(items)}]"))
        return items

    return read


def _leaf_reader(type_: pa.DataType, rules: TimeRules) -> Reader:
    convert, name = leaf_reader(type_, rules)

    def read(cursor: Cursor, path: str) -> Any:
        token = cursor.token()
        if token.kind == NULL:
            return None
        _check_encodable(token.text, path)
        value = convert(token.kind, token.text)
        if value is None:
            raise mismatch(path, token.written, name)
        return value

    return read


def _expect_null(cursor: Cursor, path: str, name: str) -> None:
    token = cursor.token()
    if token.kind != NULL:
        raise mismatch(path, token.written, name)


def _check_encodable(text: str, path: str) -> None:
    """A text that can be stored; JSON's escapes can name half of a surrogate pair, which is no character."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(f"{shortened(path)}: half a surrogate pair is not a character") from None
