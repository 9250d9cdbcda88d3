"""Records that a job's own code fails on: an expression, or a function in Python.

An error in one row ends the Spark job of a micro-batch, and says nothing about the record. With
`on_error="dead_letter"` the records are found by halving: the batch is read again as a plain DataFrame,
through the same function of the job, and of a part that fails each half is tried, down to single records.
Those become dead letters in the transaction of the batch, beside the rows of all others.

    offsets 0 ─────────────── 15   fails
    0 ────── 7 ok   8 ────── 15   fails
                    8 ── 11 ok    12 ── 15 fails …      14: ValueError: no such product

A batch that is run again, after a crash at any moment, fails again at the same records, as long as the job's
code is deterministic; so nothing has to be written down between. That holds only for jobs without state: with
it, the rows that come out depend on batches before, and a record cannot be tried alone.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from headrace.client.offsets import EARLIEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError, Misuse
from headrace.spark.planning import Range
from headrace.spark.transactional_batch import run_job
from headrace.streams.explanation import root_cause
from headrace.streams.late import keeps_state
from headrace.streams.replay import Replay
from headrace.streams.rows import Operators, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.spark.checkpoint import Offsets
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.building import Building
    from headrace.streams.explanation import Cause
    from headrace.streams.job import Job
    from headrace.streams.report import Tally
    from headrace.streams.workplace import Workplace

MOST: Final = 100
"""So many records of one batch may fail: with more, it is the job that is wrong and not the records."""
_DATA_ERROR: Final = re.compile(r"SQLSTATE: (?:22|38|39|P0)\w{3}")
"""The classes of errors about the data (22), of functions (38, 39), and of those that a query raises (P0)."""
_OF_A_FUNCTION: Final = "PythonException"
"""The class of errors that come from a Python worker, in Java and as PySpark captures them."""
_NO_FAULT_OF_ROWS: Final = ("headrace.", "pyspark.", "py4j.")

log = logging.getLogger("headrace.streams")

Failed = dict[str, dict[str, dict[str, str]]]
"""By topic, partition and offset: why the record failed."""


class RowFailed(HeadraceError):
    """A job's own code failed on a row."""


class FailedRows:
    """Finds the records of a batch that a job fails on."""

    def __init__(self, job: Job, building: Building, workplace: Workplace, tally: Tally) -> None:
        self._job = job
        self._building = building
        self._workplace = workplace
        self._tally = tally
        self._found: tuple[int, Failed] | None = None

    def check(self, rows: Rows) -> None:
        """Refuse a job whose failed records could not be found."""
        if self._job.on_error == "dead_letter" and (self._building.plan.followed or keeps_state(rows.frame)):
            raise Misuse(
                f'job {self._job.name!r} has on_error="dead_letter" and keeps state (a window, a join, a '
                "table, deduplicate() or an aggregation): what it gives for a record depends on earlier "
                "ones, so that the record that fails cannot be found by trying. Put the steps that may fail "
                "into a job of their own, which writes a topic, and let this one read it."
            )

    def of_batch(self, batch: Batch) -> Failed:
        """The records of a batch that failed; none if it was computed without an error."""
        return self._found[1] if self._found is not None and self._found[0] == batch.id else {}

    def recover(self, batch: Batch, error: Exception) -> Rows:
        """The rows of a batch whose computation failed, without the records that it failed on.

        Raises `error`, or one that names the offsets of the batch, where that is not to be or cannot be done.
        """
        cause = root_cause(error)
        if not _is_about_a_row(error, cause):
            raise error
        ranges = self._ranges(batch)
        if self._job.on_error == "fail":
            raise RowFailed(f"{cause.sentence} (in batch {batch.id}: {_listed(ranges)})") from None
        failed: Failed = {}
        if not self._search(ranges, batch.end, failed):
            log.warning(
                "job %s: batch %d failed once and not again: %s", self._job.name, batch.id, cause.sentence
            )
        self._found = (batch.id, failed)
        self._tally.failed += _count(failed)
        return self._rows(Replay(self._building, batch.start, batch.end, failed=failed))

    def _search(self, ranges: Sequence[Range], ends: Offsets, failed: Failed) -> bool:
        """Note the records that fail in these ranges; whether there is one."""
        cause = self._try(ranges, ends)
        if cause is None:
            return False
        if sum(each.size for each in ranges) == 1:
            (topic, partition), offset, _ = ranges[0]
            failed.setdefault(topic, {}).setdefault(str(partition), {})[str(offset)] = cause.sentence
            if _count(failed) > MOST:
                raise RowFailed(
                    f"more than {MOST} records of a batch fail: {cause.sentence} ({_listed(ranges)})"
                ) from None
            return True
        found = [self._search(half, ends, failed) for half in _halves(ranges)]
        if not any(found):
            raise RowFailed(
                f"{cause.sentence} ({_listed(ranges)} fail together, and neither half of them alone: no "
                "record can be named)"
            ) from None
        return True

    def _try(self, ranges: Sequence[Range], ends: Offsets) -> Cause | None:
        """Why these records fail; None if they do not. Of other partitions nothing is read."""
        start = {topic: dict(offsets) for topic, offsets in ends.items()}
        end = {topic: dict(offsets) for topic, offsets in ends.items()}
        for (topic, partition), first, until in ranges:
            start[topic][str(partition)], end[topic][str(partition)] = first, until
        rows = self._rows(Replay(self._building, start, end))
        try:
            run_job(rows.frame)
        except Exception as error:
            cause = root_cause(error)
            if not _is_about_a_row(error, cause):
                raise
            return cause
        return None

    def _rows(self, replay: Replay) -> Rows:
        with replay.active():
            result = self._job.function()
            rows = result.rows if isinstance(result, Operators) else result
        return rows if isinstance(rows, Rows) else Rows(frame=rows)

    def _ranges(self, batch: Batch) -> list[Range]:
        ranges = []
        for stream in self._building.streams:
            begun = batch.start.get(stream.topic, {})
            for number, end in sorted(batch.end.get(stream.topic, {}).items()):
                partition = TopicPartition(stream.topic, int(number))
                first = begun[number] if number in begun else self._first(partition)
                ranges.append(Range(partition, first, end))
        return [each for each in ranges if each.size > 0]

    def _first(self, partition: TopicPartition) -> int:
        return list_offsets(self._workplace.cluster, {partition: EARLIEST})[partition]


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


def _halves(ranges: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """Two parts of about the same number of offsets, neither of them empty."""
    left = sum(each.size for each in ranges) // 2
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


def _listed(ranges: Sequence[Range]) -> str:
    return ", ".join(
        f"{topic}/{number} offset{f's {start} to {end - 1}' if end - start > 1 else f' {start}'}"
        for (topic, number), start, end in ranges
    )


def _count(failed: Failed) -> int:
    return sum(len(offsets) for partitions in failed.values() for offsets in partitions.values())
