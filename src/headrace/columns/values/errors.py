"""What can be wrong with a value or with the type it is to be read as."""

from __future__ import annotations

from headrace.errors import HeadraceError

_LONGEST = 300
_LONGEST_PART = 80


class UnsupportedType(HeadraceError):
    """Values of this format cannot be read as this type; the message says which part, and what to do."""


class BadValue(HeadraceError):
    """A value is not what its format and type say; the message is the reason that users see."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…")


def mismatch(path: str, written: str, type_name: str) -> BadValue:
    """The error that what is written at `path` is not of the type that it should be."""
    article = "an" if type_name[0] in "aoi" else "a"
    place = f"{shortened(path)}: " if path else ""
    return BadValue(f"{place}{shortened(written)} is not {article} {type_name}")


def shortened(text: str) -> str:
    """As much of `text` as a message can show."""
    return text if len(text) <= _LONGEST_PART else text[: _LONGEST_PART - 1] + "…"
