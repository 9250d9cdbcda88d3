"""A place in the text of a JSON value, which moves from token to token and knows what is wrong there."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # real, though the stubs do not name it
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.columns.values.errors import BadValue
from headrace.columns.values.tokens import ARRAY, FALSE, FRACTION, INTEGER, NULL, OBJECT, STRING, TRUE

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE: Final = frozenset(" \t\n\r")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
# Python's json and Spark both read the last three where a number may stand.
_WORDS: Final = {
    "true": TRUE,
    "false": FALSE,
    "null": NULL,
    "NaN": FRACTION,
    "Infinity": FRACTION,
    "-Infinity": FRACTION,
}
_WORD: Final = re.compile("|".join(_WORDS))
# Checks and skips; numbers of any length are not worth their conversion.
_ANYTHING: Final = json.JSONDecoder(parse_int=len, parse_float=len)


class Token(NamedTuple):
    """A JSON value that is not taken apart: its kind, its meaning as text, and how it was written."""

    kind: int
    text: str
    written: str


class Cursor:
    """A place in `text`, at first before its first token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.skip_space()

    @property
    def here(self) -> str:
        """The next character, or nothing at the end."""
        return self.text[self.position : self.position + 1]

    def skip_space(self) -> None:
        """Move to the next token."""
        while self.here in _SPACE:
            self.position += 1

    def members(self, close: str) -> Iterator[None]:
        """Stop at each member of the object or array that opens here; whoever asks moves over the member."""
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
        """Move over the name of a member and its colon, and give the name."""
        if self.here != '"':
            raise self.fault("expected a name in double quotes")
        name = self._string()
        self.skip_space()
        if self.here != ":":
            raise self.fault("expected ':'")
        self.position += 1
        self.skip_space()
        return name

    def token(self) -> Token:
        """Move over the value that starts here, and give it whole."""
        start = self.position
        kind, text = self._value()
        written = self.text[start : self.position]
        return Token(kind, written if text is None else text, written)

    def fault(self, what: str) -> BadValue:
        """The error that JSON ends here."""
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
