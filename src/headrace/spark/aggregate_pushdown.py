"""Sums instead of rows: what a source is asked for whose tasks put records into pieces of time at once.

What a window needs of a stream are sums by key and piece: panes of windows, or stretches of sessions. Where
that is all that a job wants of it, the tasks that parse the records sum them up too, and Spark gets a few
thousand rows instead of millions: to hand them over one by one takes longer than all the rest.

A row has the keys, where the piece is and the parts of its sums, the newest time in it, and how many records
it stands for. The records that are in no piece, because they did not parse or have no time, are counted in a
row of their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from headrace.spark.options import Options

OPTION: Final = "sums"
TIME: Final = "_headrace_at"
NEWEST: Final = f"{TIME}.max"
RECORDS: Final = "_headrace_records"
DEAD_RECORDS: Final = "_headrace_dead"
UNTIMED_RECORDS: Final = "_headrace_untimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column that is summed up: the field of the record it is, and the type it is summed as."""

    name: str
    field: str
    type: str
    """`bigint`, `double`, or `presence` where it only counts whether there is a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatePushdown:
    """What is summed up. Plain data: it travels to the tasks as an option of the source."""

    time: str
    keys: tuple[str, ...]
    values: tuple[Value, ...]
    specs: tuple[dict[str, Any], ...]
    """The `AggregateSpec`s, each of which is over one of the values."""
    assigner: dict[str, Any]
    """Into which pieces of time: a `WindowAssigner`."""
    behind_us: int
    """How far records may be behind the watermark without being late."""
    columns: tuple[str, ...]
    """Of the rows that come out; those of the schema have the same order, and names of their own."""

    @classmethod
    def from_options(cls, options: Options) -> Self | None:
        """Those that a source was asked for; None where it gives rows."""
        text = options.text(OPTION)
        if text is None:
            return None
        told = json.loads(text)
        return cls(
            time=told["time"],
            keys=tuple(told["keys"]),
            values=tuple(Value(**value) for value in told["values"]),
            specs=tuple(told["specs"]),
            assigner=told["assigner"],
            behind_us=told["behind_us"],
            columns=tuple(told["columns"]),
        )

    def to_option(self) -> str:
        """The value of the source's option."""
        return json.dumps(asdict(self))
