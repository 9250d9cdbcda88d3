"""What the operators of a job have done around each micro-batch, next to its query."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.client.topics import NewTopic
    from headrace.spark.transactional_batch import Batch


class BatchHooks:
    """Collected while a job is planned, and carried out by the sink of the job."""

    def __init__(self) -> None:
        self.outputs: dict[str, NewTopic] = {}
        self.followed: dict[str, None] = {}
        """The topics of tables, in the order of the job's function."""
        self.tables: dict[str, Callable[[Batch], pa.Table]] = {}
        """By the topics of the tables whose copies the job keeps: their records that named no row."""
        self.state: dict[str, str] = {}
        """By the names of operators that keep state of Headrace's own: all that the state depends on."""
        self._table_counts: list[Callable[[], int]] = []
        self._checks: list[Callable[[], None]] = []
        self._before: list[Callable[[Batch], None]] = []
        self._extra: list[Callable[[Batch], DataFrame | None]] = []

    def write_to(self, topic: NewTopic) -> None:
        """Add a topic to those that the job writes; it is made when it is not there."""
        self.outputs[topic.name] = topic

    def follow(self, topic: str) -> None:
        """Journal the offsets of a topic that no stream of the job reads with each batch."""
        self.followed[topic] = None

    def count_tables(self, records: Callable[[], int]) -> None:
        """Count the records of a table: Spark knows only those of streams."""
        self._table_counts.append(records)

    def table_records(self) -> int:
        """How many records of tables were read since the job was started."""
        return sum(records() for records in self._table_counts)

    def check(self, question: Callable[[], None]) -> None:
        """Add a check that is made before the job starts; it raises what prevents the start."""
        self._checks.append(question)

    def check_all(self) -> None:
        """Make all checks."""
        for question in self._checks:
            question()

    def before(self, action: Callable[[Batch], None]) -> None:
        """Add an action before each batch is computed, on the thread that computes it.

        It is repeated with a batch that is repeated, and has to be idempotent.
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
