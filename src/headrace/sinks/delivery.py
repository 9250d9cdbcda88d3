"""Delivers the staged batches of a job to one sink, with retries.

While a target is unavailable, the batch is retried with exponential backoff and jitter, and the job waits:
this is the backpressure. Rows that the target rejects become dead letters; the other rows of the batch are
written.

Dead letters are written in the transaction of the log, after the sinks. A crash in between leaves a target
that has the batch without the rejected rows, and will skip it. So the rejected rows are stored next to the
checkpoint before the rest of the batch is written.
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode, b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.sinks.rows import json_documents
from headrace.sinks.sink import RowsRejected, TargetUnavailable, TaskStaging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.folders import Folder
    from headrace.sinks.sink import Sink, SinkContext, SinkWriter
    from headrace.sinks.staging import StagedBatch

REJECTED_FILE: Final = "rejected.json"
GENERATION_FILE: Final = "generation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """A row that a target rejected."""

    target: str
    """The name of the sink."""
    batch: int
    reason: str
    value: str
    """The row as JSON, for display."""
    row: bytes
    """The row as an Arrow stream, from which it can be written again without loss."""


class RejectedRowJournal:
    """A file with the rejected rows of the last batch that has any; one for each sink."""

    def __init__(self, folder: Folder, target: str) -> None:
        self._folder = folder
        self._target = target

    def write(self, batch: int, rejected_rows: Sequence[RejectedRow]) -> None:
        """Replace the file by the rejected rows of a batch."""
        listed = [
            {"reason": each.reason, "value": each.value, "row": b64encode(each.row).decode()}
            for each in rejected_rows
        ]
        self._folder.write(REJECTED_FILE, json.dumps({"batch": batch, "rows": listed}))

    def discard_after(self, batch: int) -> None:
        """Discard the rejected rows of a later batch than the last one in the target.

        The process crashed before the batch was written: it is repeated with all rows.
        """
        kept = _read(self._folder, REJECTED_FILE)
        if kept is not None and kept["batch"] > batch:
            self.write(kept["batch"], [])

    def read(self, batch: int) -> list[RejectedRow]:
        """The rejected rows of a batch; empty if there are none."""
        kept = _read(self._folder, REJECTED_FILE)
        if kept is None or kept["batch"] != batch:
            return []
        return [
            RejectedRow(
                target=self._target,
                batch=batch,
                reason=each["reason"],
                value=each["value"],
                row=b64decode(each["row"]),
            )
            for each in kept["rows"]
        ]


def read_generation(folder: Folder) -> int:
    """The generation of the batches of a folder; a new folder gets a higher generation than all before.

    It is the time of the first start, so that a deleted folder does not bring an old generation back.
    """
    kept = _read(folder, GENERATION_FILE)
    if kept is None:
        kept = {"generation": time.time_ns() // 1_000_000}
        folder.write(GENERATION_FILE, json.dumps(kept))
    return int(kept["generation"])


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    text = folder.read(name)
    if text is None:
        return None
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
DEFAULT_MAX_ATTEMPTS: Final = 3
"""Attempts for rows that are rejected with `retryable=True`, unless the sink defines it."""


class DeliveryStopped(HeadraceError):
    """The job was requested to stop while it waited for a target; the next run delivers the batch."""


class SinkDelivery:
    """Delivers the batches of one job to one sink.

    `on_status` is called with the reason of a wait, and with an empty string when the delivery continues.
    `wait` waits for a number of seconds, and returns whether the job was requested to stop.
    """

    def __init__(
        self,
        sink: Sink,
        context: SinkContext,
        *,
        on_status: Callable[[str], None],
        wait: Callable[[float], bool],
    ) -> None:
        self._sink = sink
        self._context = context
        self._on_status = on_status
        self._wait_or_stop = wait
        self._journal = RejectedRowJournal(context.folder, sink.name)
        self._writer: SinkWriter | None = None
        self._is_new = True
        self._newest = -1

    @property
    def target(self) -> str:
        """The name of the sink."""
        return self._sink.name

    def deliver(self, batch: int, rows: StagedBatch) -> list[RejectedRow]:
        """Commit a batch; returns its rejected rows, including those from before a crash.

        A batch without rows does not connect to the target.
        """
        if not len(rows):
            return []
        rows = replace(rows, sink=self._sink.name)
        if self._is_new or rows.is_large:
            with self._discarding(rows):
                return self._deliver(batch, rows)
        return self._deliver(batch, rows)

    @contextmanager
    def _discarding(self, rows: StagedBatch) -> Iterator[None]:
        """Remove what tasks of earlier runs have prepared, and at the end what those of the batch have."""
        sink = self._sink
        if not isinstance(sink, TaskStaging):
            yield
            return
        with suppress(TargetUnavailable):
            if self._is_new:
                sink.discard(self._context, keep=rows.tokens)
        yield
        with suppress(TargetUnavailable):
            if rows.is_large:
                sink.discard(self._context, keep=())

    def _deliver(self, batch: int, rows: StagedBatch) -> list[RejectedRow]:
        rejected: dict[int, str] = {}
        retries, tries = 0, 0
        while True:
            try:
                is_there = self._commit(batch, rows.without(rejected))
                self._on_status("")
                return self._journal.read(batch) if is_there else self._rejected_rows(batch, rows, rejected)
            except TargetUnavailable as fault:
                self.close()
                self._back_off(fault, retries)
                retries += 1
            except RowsRejected as fault:
                tries += 1
                if fault.retryable and tries < getattr(self._sink, "max_attempts", DEFAULT_MAX_ATTEMPTS):
                    self._back_off(fault, tries)
                    continue
                rejected |= fault.rows
                self._journal.write(batch, self._rejected_rows(batch, rows, rejected))
                tries = 0

    def close(self) -> None:
        """Close the connection, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _commit(self, batch: int, rows: StagedBatch) -> bool:
        """Commit the rows unless the target has the batch already; returns whether it has."""
        writer = self._open_writer()
        if self._newest >= batch:
            return True
        if len(rows):
            writer.commit(batch, rows)
            self._newest = batch
        return False

    def _open_writer(self) -> SinkWriter:
        if self._writer is None:
            self._writer = self._sink.open(self._context)
            newest = self._writer.last_batch()
            self._newest = -1 if newest is None else newest
            if self._is_new:
                self._journal.discard_after(self._newest)
            self._is_new = False
        return self._writer

    def _back_off(self, fault: HeadraceError, retries: int) -> None:
        seconds = backoff_s(retries)
        self._on_status(f"{_with_name(self._sink.name, fault)}; retrying in {seconds:.0f} s")
        if self._wait_or_stop(seconds):
            raise DeliveryStopped(
                f"the job was requested to stop while it waited for {self._sink.name}"
            ) from fault

    def _rejected_rows(self, batch: int, rows: StagedBatch, rejected: Mapping[int, str]) -> list[RejectedRow]:
        if not rejected:
            return []
        indexes = sorted(rejected)
        chosen = rows.take(indexes)
        return [
            RejectedRow(
                target=self._sink.name,
                batch=batch,
                reason=rejected[index],
                value=value,
                row=_as_arrow_stream(chosen.slice(position, 1)),
            )
            for position, (index, value) in enumerate(zip(indexes, json_documents(chosen), strict=True))
        ]


def backoff_s(retries: int) -> float:
    """The backoff after a number of retries: exponential, with a jitter of up to a third."""
    return min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** min(retries, 10)) * random.uniform(2 / 3, 1)


def _with_name(name: str, fault: HeadraceError) -> str:
    text = str(fault).rstrip(".")
    return text if text.startswith(name) else f"{name}: {text}"


def _as_arrow_stream(row: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_table(row)
    written: bytes = out.getvalue().to_pybytes()
    return written
