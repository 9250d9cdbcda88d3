"""What a table is made of: the type of its rows, which columns name one, and how long history is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY_TYPES: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_string,
    pt.is_binary,
    pt.is_decimal128,
    pt.is_date32,
    pt.is_timestamp,
)
"""What can be compared byte by byte. Fractions cannot: 0.0 and -0.0 are equal, and differ in a bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A table as its copy knows it."""

    topic: str
    row_type: pa.StructType
    """The fields of a value."""
    key: tuple[str, ...]
    valid_from: str | None = None
    """The field that says since when a row counts; otherwise the record's timestamp does."""
    keep_us: int
    """How long a version that was replaced is kept, in event time."""
    time_unit: str = "auto"
    """What numbers count that are read as timestamps."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise Misuse(f"the table of {self.topic!r}: {problem}")

    def _problems(self) -> list[str]:
        listed = ", ".join(f"{field.name} {field.type}" for field in self.row_type)
        types = {field.name: field.type for field in self.row_type}
        problems = [
            f"there is no column {name!r} to be its key or its time; the columns are {listed}."
            for name in (*self.key, *([self.valid_from] if self.valid_from else []))
            if name not in types
        ]
        problems += [
            f"{name!r} is {types[name]}, and cannot be a key: use whole numbers, decimals, text, bytes, "
            "dates, times or booleans."
            for name in self.key
            if name in types and not any(matches(types[name]) for matches in _KEY_TYPES)
        ]
        if self.valid_from in types and not pt.is_timestamp(types[self.valid_from]):
            problems.append(f"valid_from={self.valid_from!r} must name a column of type timestamp.")
        return problems

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the columns that name a row."""
        return tuple(self.row_type.field(name).type for name in self.key)

    @property
    def columns(self) -> tuple[pa.Field, ...]:
        """The columns beside the key: what a lookup gives."""
        return tuple(field for field in self.row_type if field.name not in self.key)

    @property
    def signature(self) -> str:
        """A text that is another one when files made by another definition cannot be read as this one."""
        fields = [[field.name, str(field.type)] for field in self.row_type]
        return json.dumps([self.topic, fields, self.key, self.valid_from, self.time_unit])
