"""The systems of a run, set up in one flush mode, and the loads that are put on them."""

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.broker.load.job import Job, Outcome
from bench.broker.plan import Plan
from bench.broker.systems.system import Flush, Node, System
from bench.readings import Readings, round_to

LOAD_SECONDS = 300


class ClientFailed(Exception):
    """A client program failed; the message contains its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A system with its node."""

    system: System
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Systems in one flush mode; only one of them is under load at any time."""

    flush: Flush
    plan: Plan
    entries: Sequence[Entry]
    readings: Readings
    progress: Console
    folder: Path

    def turns(self, rounds: int) -> Iterator[tuple[int, Entry]]:
        """The systems in turn, round by round, so that a slow minute of the machine affects all of them.

        Round 0 is the warm-up. Each round starts with another system.
        """
        for number in range(rounds + 1):
            shift = number % len(self.entries) if self.entries else 0
            for entry in [*self.entries[shift:], *self.entries[:shift]]:
                yield number, entry

    def speaking_kafka(self) -> "Stage":
        """The same stage with only the systems that use the Kafka client."""
        return self._with([entry for entry in self.entries if entry.system.speaks_kafka])

    def with_partitions(self, partitions: int) -> "Stage":
        """The same stage with only the systems that support this number of partitions."""
        return self._with([entry for entry in self.entries if partitions == 1 or entry.system.has_partitions])

    def _with(self, entries: Sequence[Entry]) -> "Stage":
        return Stage(
            flush=self.flush,
            plan=self.plan,
            entries=entries,
            readings=self.readings,
            progress=self.progress,
            folder=self.folder,
        )

    def cell(self, *words: str) -> str:
        """The name of a row, with the flush mode."""
        return ", ".join([*words, self.flush.value])

    def read(self, entry: Entry, measure: str, cell: str, values: Mapping[str, float]) -> None:
        """Add one round of a row: `values` by unit."""
        for unit, value in values.items():
            self.readings.add(measure=measure, cell=cell, unit=unit, system=entry.system.name, value=value)
        said = ", ".join(f"{round_to(value):,g} {unit}" for unit, value in values.items())
        self.progress.log(f"{measure} · {cell} · {entry.system.title}: {said}")

    def load(self, entry: Entry, act: str, *, client: str | None = None, **details: object) -> Outcome:
        """Run one client program against a system; returns its outcome."""
        node = entry.node
        job = Job(act=act, address=node.address, ca=node.ca, broker_pid=node.pid, **details)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "bench.broker.load", client or entry.system.client, job.to_json()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=True)
        except subprocess.TimeoutExpired:
            raise ClientFailed(
                f"{act} on {entry.system.title} did not end in {LOAD_SECONDS} s: {job}"
            ) from None
        except subprocess.CalledProcessError as failed:
            raise ClientFailed(
                f"{act} on {entry.system.title} failed: {job}\n{failed.stderr[-3000:]}"
            ) from None
        return Outcome.from_json(done.stdout.splitlines()[-1])


def new_topic() -> str:
    """A name that no earlier load has used."""
    return f"bench-{uuid.uuid4().hex[:12]}"


@contextmanager
def set_up(
    systems: Sequence[System], flush: Flush, *, plan: Plan, readings: Readings, progress: Console
) -> Iterator[Stage]:
    """The systems, set up in temporary folders and not started yet; everything is removed at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        entries = []
        for system in systems:
            own = folder / system.name
            own.mkdir()
            node = system.set_up(own, flush)
            stack.callback(node.close)
            entries.append(Entry(system=system, node=node))
        yield Stage(
            flush=flush, plan=plan, entries=entries, readings=readings, progress=progress, folder=folder
        )
