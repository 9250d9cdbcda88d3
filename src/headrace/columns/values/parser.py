"""The interface of value parsers, and the errors that they report: each bad value has a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa


_LONGEST = 300
_LONGEST_PART = 80


class UnsupportedType(HeadraceError):
    """Values of this format cannot be read as this type; the message says which part, and what to do."""


class BadValue(HeadraceError):
    """A value does not match its format and type; the message is the reason that users see."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…")


def mismatch(path: str, written: str, type_name: str) -> BadValue:
    """The error that the text at `path` is not of the expected type."""
    article = "an" if type_name[0] in "aoi" else "a"
    place = f"{shortened(path)}: " if path else ""
    return BadValue(f"{place}{shortened(written)} is not {article} {type_name}")


def shortened(text: str) -> str:
    """`text`, shortened for a message."""
    return text if len(text) <= _LONGEST_PART else text[: _LONGEST_PART - 1] + "…"


class Parsed(NamedTuple):
    """Values and errors, one of each for each parsed value.

    Where there is an error the value is null. A null without an error was null before: a tombstone.
    `errors` is None if there are no errors.
    """

    values: pa.Array
    errors: pa.StringArray | None


class ValueParser(Protocol):
    """Turns the bytes of values into a column of one type."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The values, in their order; never raises for their content."""
        ...


def decoded(value: bytes) -> str:
    """`value` as UTF-8 text; raises `BadValue`."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8: byte 0x{value[error.start]:02x} at byte {error.start + 1}") from None
