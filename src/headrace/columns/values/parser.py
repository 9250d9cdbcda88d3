"""What every format's parser gives: columns of values, and beside each value that is none the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Parsed(NamedTuple):
    """Values and errors, each as long as what was parsed.

    Where there is an error the value is null. A null without an error was null before: a tombstone.
    `errors` is None when there are none at all.
    """

    values: pa.Array
    errors: pa.StringArray | None


class ValueParser(Protocol):
    """Turns the bytes of values into a column of one type."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The values, in their order; never raises for what is in them."""
        ...
