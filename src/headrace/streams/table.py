"""A topic as a table: for every key the row that counts, at each moment of its history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import Misuse
from headrace.streams.names import checked_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The newest row of every key of a topic, and the rows before it for as long as is declared.

    A record without a value deletes its key.
    """

    topic: str
    schema: str
    """The fields of the value, as DDL or as the JSON of a StructType."""
    key: tuple[str, ...]
    """The columns that name a row."""
    valid_from: str | None = None
    """The timestamp column that says since when a row counts; otherwise the record's timestamp does."""
    keep: str = "1 day"
    """How long a row that was replaced can still be joined, in event time."""
    format: Literal["json"] = "json"

    def __post_init__(self) -> None:
        checked_name(self.topic, "topic")
        if not self.key:
            raise Misuse(f'the table of {self.topic!r} needs a key: name the columns, for example key="id".')
