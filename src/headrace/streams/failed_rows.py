"""Records and rows that a job's own code fails on: an expression, or a function in Python.

An error in one row ends the Spark job of a micro-batch, and does not name the row. With
`on_error="dead_letter"` it is found by halving, and becomes a dead letter in the transaction of the batch.

```text
records ──▶ user code ──▶ stateful operator ──▶ results ──▶ user code ──▶ output
        a record fails here                             a result fails here
```

- In front of the operators that keep state, or without any, a *record* fails. The batch is read again as a
  plain DataFrame, up to the operators, and of a part that fails each half is tried, down to single records.
  Then the batch is run again and its source leaves these records out: state that the first run wrote does not
  count, as when Spark tries a task again.

      offsets 0 ─────────────── 15   fails
      0 ────── 7 ok   8 ────── 15   must fail
                      8 ── 11 ok    12 ── 15 must fail …  14: ValueError: no such product

- Behind the last of these operators a *result* fails: a row of a window or a join, which comes from many
  records. The streaming query of such a job ends with that operator, and what follows is applied to the rows
  of each batch, where they can be halved in the same way.

- Between two operators that keep state neither can be done, and the job fails.

A batch that is run again, after a crash at any moment, fails again at the same rows, as long as the job's
code is deterministic; so nothing has to be written down between.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.client.offsets import EARLIEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.engine.replay import ResultReplay, last_operator
from headrace.errors import HeadraceError
from headrace.spark.internals import run_job
from headrace.spark.offsets import Range
from headrace.spark.row_checks import FailedRecords
from headrace.streams.explanation import root_cause
from headrace.streams.late import replay_of
from headrace.streams.source import sources_of
from headrace.streams.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.engine.planner import Planner
    from headrace.spark.checkpoint import Offsets
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.explanation import Cause
    from headrace.streams.job import Job
    from headrace.streams.outputs import Outputs
    from headrace.streams.report import JobMetrics
    from headrace.streams.run_context import RunContext

MAX_FAILURES: Final = 100
"""With more failures in one batch, it is the job that is wrong and not the rows."""
LETTER: Final = "topic string, value string, headers array<struct<key: string, value: binary>>"
_DATA_ERROR: Final = re.compile(r"SQLSTATE: (?:22|38|39|P0)\w{3}")
"""The classes of errors about the data (22), of functions (38, 39), and of those that a query raises (P0)."""
_OF_A_FUNCTION: Final = "PythonException"
"""The class of errors that come from a Python worker, in Java and as PySpark captures them."""
_NO_FAULT_OF_ROWS: Final = ("headrace.", "pyspark.", "py4j.")

log = logging.getLogger("headrace.streams")

Failed = dict[str, dict[str, dict[str, str]]]
"""By topic, partition and offset: why the record failed."""
Part = TypeVar("Part")
"""A part of a batch: ranges of offsets, or numbers of rows."""


class RowFailed(HeadraceError):
    """A job's own code failed on a row."""


class FailedRows:
    """Finds the records of a batch, and the results, that a job fails on."""

    def __init__(self, job: Job, planner: Planner, run_context: RunContext, metrics: JobMetrics) -> None:
        self._job = job
        self._planner = planner
        self._run_context = run_context
        self._metrics = metrics
        self._is_stateful = planner.plan.keeps_state(planner.rows)
        self._results: list[tuple[str, str]] = []
        self._last = last_operator(planner) if job.on_error == "dead_letter" else None
        planner.hooks.before(self._forget)
        planner.hooks.add_rows(self._letters)

    @property
    def results(self) -> DataFrame | None:
        """The rows that the streaming query ends with, if the rest of the job is applied to its batches."""
        return None if self._last is None else self._planner.planned(self._last).frame

    def recover(self, batch: Batch, error: Exception) -> None:
        """Have the source leave out the records that the batch failed on.

        Raises `error`, or one that names the offsets of the batch, where that is not wanted or not possible.
        """
        cause = root_cause(error)
        if not _is_about_a_row(error, cause):
            raise error
        ranges = self._ranges(batch)
        if self._job.on_error == "fail":
            raise RowFailed(f"{cause.sentence} (in batch {batch.id}: {_listed(ranges)})") from None
        failed: Failed = {}
        found = _search(ranges, _halves, lambda part: self._try_records(part, batch.end), _listed)
        for part, why in found:
            (topic, partition), offset, _ = part[0]
            failed.setdefault(topic, {}).setdefault(str(partition), {})[str(offset)] = why.sentence
        if not failed and self._is_stateful:
            raise RowFailed(
                f"{cause.sentence} (in batch {batch.id}: {_listed(ranges)}). No record fails in front of the "
                "first stateful operator: the code that fails is between two of them, or inside one, where "
                "no row can become a dead letter. Write the result of the first one into a topic, and let "
                "another job read it."
            ) from None
        if not failed:
            log.warning(
                "job %s: batch %d failed once and not again: %s", self._job.name, batch.id, cause.sentence
            )
        self._publish(failed)

    @contextmanager
    def deliver(self, outputs: Outputs, results: DataFrame, batch: Batch) -> Iterator[DataFrame | None]:
        """Apply the job's code behind its last stateful operator, and hand the rows to the outputs."""
        results.persist()
        try:
            results.count()  # an error in here is about a record
            rows = self._applied(results)
            cause = _try(rows)
            if cause is not None:
                rows = self._applied(self._without_failures(results, cause))
            with outputs.deliver(rows, batch) as records:
                yield records
        finally:
            results.unpersist()

    def _without_failures(self, results: DataFrame, first: Cause) -> DataFrame:
        """The results that the job's code does not fail on; the others are noted."""
        table = results.toArrow()
        numbers = range(table.num_rows)
        found = _search([numbers], _half_numbers, lambda part: self._try_results(table, part), _numbered)
        failed = {part[0].start: why.sentence for part, why in found}
        if not failed:
            log.warning("job %s failed once and not again: %s", self._job.name, first.sentence)
        values = self._documents(table.take(list(failed)))
        self._results = list(zip(values, failed.values(), strict=True))
        self._metrics.failed += len(failed)
        return self._frame(table.take([number for number in numbers if number not in failed]))

    def _try_results(self, table: pa.Table, part: Sequence[range]) -> Cause | None:
        (numbers,) = part
        return _try(self._applied(self._frame(table.slice(numbers.start, len(numbers)))))

    def _documents(self, table: pa.Table) -> list[str]:
        """Rows as JSON."""
        records = Topic(name=self._job.dead_topic).records(self._frame(table))
        return [row["value"] for row in records.collect()]

    def _frame(self, table: pa.Table) -> DataFrame:
        assert self.results is not None
        return self._planner.spark.createDataFrame(table, self.results.schema)

    def _letters(self, batch: Batch) -> DataFrame | None:
        """The dead letters of the results that failed; those of records are read from their topic."""
        if not self._results:
            return None
        at = ("batch", str(batch.id).encode())
        letters = [
            (self._job.dead_topic, value, [("reason", bytearray(reason.encode())), (at[0], bytearray(at[1]))])
            for value, reason in self._results
        ]
        return self._planner.spark.createDataFrame(letters, LETTER)

    def _applied(self, results: DataFrame) -> DataFrame:
        assert self._last is not None
        return ResultReplay(self._planner, self._last, results).planned_rows().frame

    def _try_records(self, ranges: Sequence[Range], ends: Offsets) -> Cause | None:
        """Why these records fail; None if they do not. Of other partitions nothing is read."""
        start = {topic: dict(offsets) for topic, offsets in ends.items()}
        end = {topic: dict(offsets) for topic, offsets in ends.items()}
        for (topic, partition), first, until in ranges:
            start[topic][str(partition)], end[topic][str(partition)] = first, until
        causes = (_try(frame) for frame in replay_of(self._planner, start, end).evaluated())
        return next((cause for cause in causes if cause is not None), None)

    def _forget(self, _batch: Batch) -> None:
        self._results = []
        self._publish({})

    def _publish(self, failed: Failed) -> None:
        FailedRecords(offsets=failed).publish(self._planner.spark.sparkContext)

    def _ranges(self, batch: Batch) -> list[Range]:
        ranges = []
        for stream in (source.stream for source in sources_of(self._planner)):
            begun = batch.start.get(stream.topic, {})
            for number, end in sorted(batch.end.get(stream.topic, {}).items()):
                partition = TopicPartition(stream.topic, int(number))
                first = begun[number] if number in begun else self._first(partition)
                ranges.append(Range(partition, first, end))
        return [each for each in ranges if each.size > 0]

    def _first(self, partition: TopicPartition) -> int:
        return list_offsets(self._run_context.cluster, {partition: EARLIEST})[partition]


def _search(
    parts: Sequence[Part],
    halves: Callable[[Sequence[Part]], tuple[list[Part], list[Part]] | None],
    try_: Callable[[Sequence[Part]], Cause | None],
    name: Callable[[Sequence[Part]], str],
) -> list[tuple[Sequence[Part], Cause]]:
    """The smallest parts that fail, and why; `halves` gives None for a part that is the smallest.

    All parts together are known to fail. Each try is a job of Spark, so what is known is not tried: if the
    first half of a part that fails does not, the second half does.
    """
    found: list[tuple[Sequence[Part], Cause]] = []

    def search(parts: Sequence[Part], *, is_known: bool) -> bool:
        divided = halves(parts)
        cause = None
        if divided is None or not is_known:
            cause = try_(parts)
            if cause is None:
                return False
            if divided is None:
                found.append((parts, cause))
                if len(found) > MAX_FAILURES:
                    raise RowFailed(
                        f"more than {MAX_FAILURES} rows of a batch fail: {cause.sentence} ({name(parts)})"
                    ) from None
                return True
        first, second = divided
        does_first_fail = search(first, is_known=False)
        if search(second, is_known=not does_first_fail) or does_first_fail:
            return True
        if cause is None:
            return False  # what was known is not true, or no row alone is the reason
        raise RowFailed(
            f"{cause.sentence} ({name(parts)} fail together, and neither half of them alone: no row can be "
            "named)"
        ) from None

    if parts and not search(parts, is_known=True):
        search(parts, is_known=False)
    return found


def _try(frame: DataFrame) -> Cause | None:
    """Why rows cannot be computed, if one of them is the reason; None if they can be."""
    try:
        run_job(frame)
    except Exception as error:
        cause = root_cause(error)
        if not _is_about_a_row(error, cause):
            raise
        return cause
    return None


def _is_about_a_row(error: Exception, cause: Cause) -> bool:
    """Whether an error is one that a record can be the reason of, and not one of the machinery."""
    if isinstance(error, HeadraceError) or cause.kind.startswith("headrace."):
        return False
    if _DATA_ERROR.search(str(error)):
        return True
    is_users = (
        bool(cause.kind) and not cause.kind.startswith(_NO_FAULT_OF_ROWS) and cause.kind != "MemoryError"
    )
    return is_users and _OF_A_FUNCTION in f"{type(error).__name__}: {error}"


def _halves(ranges: Sequence[Range]) -> tuple[list[Range], list[Range]] | None:
    """Two parts of about the same number of offsets, neither of them empty; None for a single offset."""
    total = sum(each.size for each in ranges)
    if total == 1:
        return None
    left = total // 2
    first: list[Range] = []
    second: list[Range] = []
    for each in ranges:
        taken = min(left, each.size)
        left -= taken
        cut = each.start + taken
        if taken:
            first.append(each._replace(end=cut))
        if cut < each.end:
            second.append(each._replace(start=cut))
    return first, second


def _half_numbers(part: Sequence[range]) -> tuple[list[range], list[range]] | None:
    (numbers,) = part
    middle = len(numbers) // 2
    return ([numbers[:middle]], [numbers[middle:]]) if middle else None


def _listed(ranges: Sequence[Range]) -> str:
    return ", ".join(
        f"{topic}/{number} offset{f's {start} to {end - 1}' if end - start > 1 else f' {start}'}"
        for (topic, number), start, end in ranges
    )


def _numbered(part: Sequence[range]) -> str:
    return f"{len(part[0])} results"
