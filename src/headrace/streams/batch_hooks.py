"""What the operators of a job want done around each micro-batch, beside its query."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.client.topics import NewTopic
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.late import WindowInput

Made = TypeVar("Made")


class BatchHooks:
    """Collected while a job's function runs, and carried out by the sink of the job."""

    def __init__(self) -> None:
        self.outputs: dict[str, NewTopic] = {}
        self.followed: dict[str, None] = {}
        """The topics of tables, in the order of the job's function."""
        self.notes_windows = False
        """Whether the job wants something done with rows that are late for a window."""
        self.allowed_lateness_ms = 0
        """For how long after its result late rows correct a window."""
        self.windows: list[WindowInput] = []
        """The windows, if they are noted, in the order of the job's function."""
        self.tables: dict[str, Callable[[Batch], pa.Table]] = {}
        """By the topics of the tables that are kept beside the batches: their records that named no row."""
        self.stages: list[str] = []
        """The steps of the job that keep state of Headrace's own, with all that the state depends on."""
        self.transforms_views = False
        """Whether functions of the user are part of a join of tables."""
        self._table_counts: list[Callable[[], int]] = []
        self._checks: list[Callable[[], None]] = []
        self._before: list[Callable[[Batch], None]] = []
        self._extra: list[Callable[[Batch], DataFrame | None]] = []
        self._made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time that something of this name is asked for."""
        if name not in self._made:
            self._made[name] = make()
        return cast("Made", self._made[name])

    def write_to(self, topic: NewTopic) -> None:
        """Add a topic to those that the job writes; it is made when it is not there."""
        self.outputs[topic.name] = topic

    def follow(self, topic: str) -> None:
        """Have the offsets of each batch say how far it goes in a topic that no stream of the job reads."""
        self.followed[topic] = None

    def count_tables(self, records: Callable[[], int]) -> None:
        """Count the records of a table: Spark knows only those of streams."""
        self._table_counts.append(records)

    def table_records(self) -> int:
        """How many records of tables were read since the job was started."""
        return sum(records() for records in self._table_counts)

    def check(self, question: Callable[[], None]) -> None:
        """Have something looked at before the job starts; it raises what stands in the way."""
        self._checks.append(question)

    def check_all(self) -> None:
        """Look at what was asked to be looked at."""
        for question in self._checks:
            question()

    def before(self, action: Callable[[Batch], None]) -> None:
        """Have something done before each batch is computed, on the thread that computes it.

        It is done again when a batch is repeated, and has to come to the same.
        """
        self._before.append(action)

    def add_rows(self, rows: Callable[[Batch], DataFrame | None]) -> None:
        """Add records to each batch once it is computed: topic, value and, at will, key and headers."""
        self._extra.append(rows)

    def prepare(self, batch: Batch) -> None:
        """Do what was asked for before a batch."""
        for action in self._before:
            action(batch)

    def extra_rows(self, batch: Batch) -> DataFrame | None:
        """All additional records of a batch, or None if there are none."""
        parts = [part for part in (rows(batch) for rows in self._extra) if part is not None]
        if not parts:
            return None
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
