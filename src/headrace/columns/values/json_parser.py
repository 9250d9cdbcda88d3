"""JSON values as typed columns.

All values go through one compiled pass; those that it cannot decide are read again, one at a time, by the
reference parser, which returns the value or the reason why there is none.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # real, though the stubs do not name it
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow.types as pt

from headrace.columns.values.assembly import finish
from headrace.columns.values.json_scanner import JsonScanner
from headrace.columns.values.scalars import leaf_reader
from headrace.columns.values.tokens import (
    ARRAY,
    FALSE,
    FRACTION,
    INTEGER,
    NULL,
    OBJECT,
    STRING,
    TRUE,
    BadValue,
    decoded,
    mismatch,
    raw_values,
    shape_of,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headrace.columns.values.times import TimeRules
    from headrace.columns.values.tokens import Parsed

    Reader: TypeAlias = Callable[["Cursor", str], Any]


_SPACE: Final = frozenset(" \t\n\r")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
# Python's json and Spark both read the last three as numbers.
_WORDS: Final = {
    "true": TRUE,
    "false": FALSE,
    "null": NULL,
    "NaN": FRACTION,
    "Infinity": FRACTION,
    "-Infinity": FRACTION,
}
_WORD: Final = re.compile("|".join(_WORDS))
# Checks and skips values; converting long numbers would be wasted.
_ANYTHING: Final = json.JSONDecoder(parse_int=len, parse_float=len)


class JsonToken(NamedTuple):
    """A JSON value as a whole: its kind, its value as text, and its source text."""

    kind: int
    text: str
    written: str


class Cursor:
    """A position in `text`, at first before its first token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.skip_space()

    @property
    def here(self) -> str:
        """The next character, or an empty string at the end."""
        return self.text[self.position : self.position + 1]

    def skip_space(self) -> None:
        """Move to the next token."""
        while self.here in _SPACE:
            self.position += 1

    def members(self, close: str) -> Iterator[None]:
        """Stop at each member of the object or array that opens here; the caller moves over the member."""
        self.position += 1
        self.skip_space()
        if self.here == close:
            self.position += 1
            return
        while True:
            yield
            self.skip_space()
            if self.here == close:
                self.position += 1
                return
            if self.here != ",":
                raise self.fault(f"expected ',' or '{close}'")
            self.position += 1
            self.skip_space()

    def key(self) -> str:
        """Move over the name of a member and its colon, and return the name."""
        if self.here != '"':
            raise self.fault("expected a name in double quotes")
        name = self._string()
        self.skip_space()
        if self.here != ":":
            raise self.fault("expected ':'")
        self.position += 1
        self.skip_space()
        return name

    def token(self) -> JsonToken:
        """Move over the value that starts here, and return all of it."""
        start = self.position
        kind, text = self._value()
        written = self.text[start : self.position]
        return JsonToken(kind, written if text is None else text, written)

    def fault(self, what: str) -> BadValue:
        """The error that the text is not JSON at this position."""
        return BadValue(f"not JSON: {what} at character {self.position + 1}")

    def _value(self) -> tuple[int, str | None]:
        if self.here == '"':
            return STRING, self._string()
        if self.here in {"{", "["}:
            kind = OBJECT if self.here == "{" else ARRAY
            self._skip_container()
            return kind, None
        if found := _WORD.match(self.text, self.position):
            kind = _WORDS[found[0]]
        elif found := _NUMBER.match(self.text, self.position):
            kind = INTEGER if found[1] is None and found[2] is None else FRACTION
        else:
            raise self.fault("expected a value")
        self.position = found.end()
        return kind, None

    def _string(self) -> str:
        try:
            text, self.position = scanstring(self.text, self.position + 1, True)
        except json.JSONDecodeError as error:
            self.position = error.pos
            raise self.fault(_lowered(error.msg)) from None
        return str(text)

    def _skip_container(self) -> None:
        try:
            _, self.position = _ANYTHING.raw_decode(self.text, self.position)
        except json.JSONDecodeError as error:
            self.position = error.pos
            raise self.fault(_lowered(error.msg)) from None


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:].removesuffix(" at")


class JsonReference:
    """Reads values of one type, one at a time."""

    def __init__(self, type_: pa.DataType, rules: TimeRules) -> None:
        self._read = _reader(type_, rules)

    def read(self, value: bytes) -> Any:
        """The value as Python objects for Arrow; raises `BadValue` with the reason and the position."""
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
    """A text that can be stored: JSON's escapes can be half of a surrogate pair, which is not a character."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(f"{shortened(path)}: an unpaired surrogate is not a character") from None


class JsonParser:
    """Parses JSON objects into structs of `type_`; `rules` say what its times mean."""

    def __init__(self, type_: pa.DataType, rules: TimeRules) -> None:
        self._rules = rules
        self._scanner = JsonScanner(shape_of(type_))
        self._reference = JsonReference(type_, rules)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The objects, with the reason of each value that is not one."""
        scan = self._scanner.scan(*raw_values(values))
        return finish(scan, values, self._rules, self._reference)
