"""Aggregate pushdown: the tasks of a source return partial aggregates instead of rows.

A window needs partial aggregates of a stream by key and pane (or by part of a session). If a job needs
nothing else of it, the tasks that parse the records aggregate them too, and Spark gets a few thousand rows
instead of millions: passing each row takes longer than everything else.

A row has the keys, the pane, the partial aggregates, the newest time in the pane, and the number of its
records. The records that are in no pane, because they did not parse or have no time, are counted in a
separate row.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.serializers import CPickleSerializer

if TYPE_CHECKING:
    from headrace.columns.aggregates import AggregateSpec
    from headrace.spark.options import Options

PICKLE: Final[Any] = CPickleSerializer()
"""As Spark sends functions to tasks."""
OPTION: Final = "sums"
TIME: Final = "_headrace_at"
NEWEST: Final = f"{TIME}.max"
RECORDS: Final = "_headrace_records"
DEAD_RECORDS: Final = "_headrace_dead"
UNTIMED_RECORDS: Final = "_headrace_untimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A column that is aggregated: its field of the record, and the type for the aggregation."""

    name: str
    field: str
    type: str
    """`bigint`, `double`, or `presence` if only non-null values are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatePushdown:
    """What is aggregated. Plain data that is sent to the tasks as an option of the source."""

    time: str
    keys: tuple[str, ...]
    values: tuple[Value, ...]
    specs: tuple[AggregateSpec, ...]
    """What is computed of the values."""
    assigner: dict[str, Any]
    """The assigner of panes: a `WindowAssigner`."""
    behind_us: int
    """How far records may be behind the watermark without being late."""
    columns: tuple[str, ...]
    """The columns of the returned rows, in the order of the schema, which may have other names."""

    @classmethod
    def from_options(cls, options: Options) -> Self | None:
        """The pushdown of a source's options; None if it returns rows."""
        text = options.text(OPTION)
        if text is None:
            return None
        told = json.loads(text)
        return cls(
            time=told["time"],
            keys=tuple(told["keys"]),
            values=tuple(Value(**value) for value in told["values"]),
            specs=PICKLE.loads(b64decode(told["specs"])),
            assigner=told["assigner"],
            behind_us=told["behind_us"],
            columns=tuple(told["columns"]),
        )

    def to_option(self) -> str:
        """The value of the source's option."""
        specs = PICKLE.dumps(self.specs)  # they may have classes of users
        values = [asdict(value) for value in self.values]
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**told, "values": values, "specs": b64encode(specs).decode()})
