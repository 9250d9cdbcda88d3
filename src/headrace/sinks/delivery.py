"""Brings the batches of a job to one target, however long it takes.

A target that is away is waited for, longer each time, with a bit of chance in it so that many jobs do not
come back at once. Meanwhile the batch waits, and with it the job: nothing is read that could not be written.
Rows that the target refuses become letters; the others are delivered.
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.sinks.rows import json_documents, without
from headrace.sinks.sink import Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.folders import Folder
    from headrace.sinks.sink import Place, Sink, Target

REFUSED: Final = "refused.json"
GENERATION: Final = "generation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A row that a target did not take."""

    target: str
    """The name of its sink."""
    batch: int
    reason: str
    value: str
    """The row as JSON, for people."""
    row: bytes
    """The row as a stream of Arrow's: with it, nothing is lost on the way back."""


class Journal:
    """The letters of the newest batch of which rows were refused; a sink has one in its folder."""

    def __init__(self, folder: Folder, target: str) -> None:
        self._folder = folder
        self._target = target

    def write(self, batch: int, letters: Sequence[Letter]) -> None:
        """Keep the letters of a batch, in place of those of others."""
        listed = [
            {"reason": each.reason, "value": each.value, "row": b64encode(each.row).decode()}
            for each in letters
        ]
        self._folder.write(REFUSED, json.dumps({"batch": batch, "letters": listed}))

    def forget_after(self, batch: int) -> None:
        """Forget letters of a later batch than the newest that the target has.

        They are of a process that ended before the target had the batch: it is tried anew, as a whole.
        """
        kept = _read(self._folder, REFUSED)
        if kept is not None and kept["batch"] > batch:
            self.write(kept["batch"], [])

    def read(self, batch: int) -> list[Letter]:
        """The letters of a batch; none if no row of it was refused."""
        kept = _read(self._folder, REFUSED)
        if kept is None or kept["batch"] != batch:
            return []
        return [
            Letter(
                target=self._target,
                batch=batch,
                reason=each["reason"],
                value=each["value"],
                row=b64decode(each["row"]),
            )
            for each in kept["letters"]
        ]


def generation_of(folder: Folder) -> int:
    """The number of the series of batches that a folder is for; the first time, one above all before it.

    It is the time when the series began: a folder that was deleted does not bring old numbers back.
    """
    kept = _read(folder, GENERATION)
    if kept is None:
        kept = {"generation": time.time_ns() // 1_000_000}
        folder.write(GENERATION, json.dumps(kept))
    return int(kept["generation"])


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    text = folder.read(name)
    if text is None:
        return None
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
TRIES: Final = 3
"""Of rows that were refused and might be taken later, for sinks that do not say it."""


class DeliveryStopped(HeadraceError):
    """The job was asked to stop while it waited for a target; the next run delivers the batch."""


class Delivery:
    """One sink of one job.

    `tell` is called with what holds it up, and with an empty text when it goes on. `pause` waits for so many
    seconds, and says whether the job is to stop instead.
    """

    def __init__(
        self, sink: Sink, place: Place, *, tell: Callable[[str], None], pause: Callable[[float], bool]
    ) -> None:
        self._sink = sink
        self._place = place
        self._tell = tell
        self._pause = pause
        self._journal = Journal(place.folder, sink.name)
        self._target: Target | None = None
        self._is_new = True
        self._newest = -1

    def deliver(self, batch: int, rows: pa.Table) -> list[Letter]:
        """Return when the target has the batch; the rows of it that it refused, now or before a crash.

        A batch without rows leaves the target alone: it is not even asked whether it is there.
        """
        if not len(rows):
            return []
        rest, kept = rows, cast("Sequence[int]", range(len(rows)))
        refused: dict[int, str] = {}
        waits, tries = 0, 0
        while True:
            try:
                is_there = self._write(batch, rest)
                self._tell("")
                return self._journal.read(batch) if is_there else self._letters(batch, rows, refused)
            except Unavailable as fault:
                self.close()
                self._wait(fault, waits)
                waits += 1
            except Refused as fault:
                tries += 1
                if not fault.final and tries < getattr(self._sink, "tries", TRIES):
                    self._wait(fault, tries)
                    continue
                refused |= {kept[index]: reason for index, reason in fault.rows.items()}
                self._journal.write(batch, self._letters(batch, rows, refused))
                rest, kept = without(rows, refused)
                tries = 0

    def close(self) -> None:
        """Hang up, if there is a connection."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _write(self, batch: int, rows: pa.Table) -> bool:
        """Write the rows, unless the target had the batch already; whether it had."""
        target = self._opened()
        if self._newest >= batch:
            return True
        if len(rows):
            target.write(batch, rows)
            self._newest = batch
        return False

    def _opened(self) -> Target:
        if self._target is None:
            self._target = self._sink.open(self._place)
            newest = self._target.newest()
            self._newest = -1 if newest is None else newest
            if self._is_new:
                self._journal.forget_after(self._newest)
            self._is_new = False
        return self._target

    def _wait(self, fault: HeadraceError, waits: int) -> None:
        seconds = wait_s(waits)
        self._tell(f"{_named(self._sink.name, fault)}; next try in {seconds:.0f} s")
        if self._pause(seconds):
            raise DeliveryStopped(
                f"the job was asked to stop while it waited for {self._sink.name}"
            ) from fault

    def _letters(self, batch: int, rows: pa.Table, refused: Mapping[int, str]) -> list[Letter]:
        if not refused:
            return []
        indexes = sorted(refused)
        chosen = rows.take(pa.array(indexes, pa.int64()))
        return [
            Letter(
                target=self._sink.name,
                batch=batch,
                reason=refused[index],
                value=value,
                row=_as_stream(chosen.slice(position, 1)),
            )
            for position, (index, value) in enumerate(zip(indexes, json_documents(chosen), strict=True))
        ]


def wait_s(waits: int) -> float:
    """How long to wait after so many waits: twice as long each time, and up to a third less by chance."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(waits, 10)) * random.uniform(2 / 3, 1)


def _named(name: str, fault: HeadraceError) -> str:
    text = str(fault).rstrip(".")
    return text if text.startswith(name) else f"{name}: {text}"


def _as_stream(row: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_table(row)
    written: bytes = out.getvalue().to_pybytes()
    return written
