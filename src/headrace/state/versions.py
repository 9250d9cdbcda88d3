"""Versions of a partition's state: a manifest for each micro-batch, and the runs that it names.

```text
<checkpoint>/operators/window-1/
    operator.json     what the operator computes, and its number of partitions
    3/41.json         the manifest of partition 3 after batch 41
    3/38-5f0c….arrow  a run that batch 38 wrote
```

Batch N starts from the manifest of batch N-1 and writes its own when its runs are complete. Runs are never
overwritten and their names are never reused, so a retried task and a repeated batch find what they found
before. The manifests of N and N-1 are kept with all runs that they name; a missing one is an error.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from headrace.state.files import BadState
from headrace.state.runs import ALWAYS, SUFFIX, RunInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.state.files import StateFiles

MANIFEST: Final = ".json"
FAN: Final = 8
"""This many runs of similar size are merged into one."""
MOST_RUNS: Final = 64
"""More runs than this are merged into one; levels keep their number far below it."""
SMALLEST: Final = 1024
"""Runs of up to about this many rows are of similar size."""


class BatchFigures(NamedTuple):
    """What a batch notes in its manifest besides its state."""

    deadline_rule: str
    late: int
    started_s: float
    """The time by `time.perf_counter` since which the batch has read and written state, without pauses."""

    def noted(self) -> dict[str, Any]:
        """The fields of the manifest, with the time until now."""
        state_ms = round(1000 * (time.perf_counter() - self.started_s), 3)
        return {"deadline_rule": self.deadline_rule, "late": self.late, "state_ms": state_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The state of a partition after a batch."""

    version: int
    """The number of the batch; -1 before the first one."""
    seed: str
    """The seed of the hash of keys, as hexadecimal digits."""
    runs: Mapping[str, tuple[RunInfo, ...]] = field(default_factory=dict)
    """The runs, oldest first, by the name of what they hold."""
    watermark_us: int = ALWAYS
    """Rows that were due by then have been looked at."""
    rows: int = 0
    """The number of rows that count."""
    next_id: int = 0
    """The id of the next row of a join."""
    deadline_rule: str = ""
    """What the due and expiry times of the rows depend on."""
    late: int = 0
    """The number of rows that came too late in the batch."""
    state_ms: float = 0.0
    """How long the batch read and wrote state."""

    @classmethod
    def empty(cls) -> Self:
        """Before the first batch, with a random seed: clients cannot choose keys that collide."""
        return cls(version=-1, seed=secrets.token_hex(16))

    @property
    def seed_words(self) -> NDArray[np.uint64]:
        """The seed as the hash takes it."""
        return np.frombuffer(bytes.fromhex(self.seed), np.uint64).copy()

    @property
    def byte_size(self) -> int:
        """The size of all runs."""
        return sum(run.byte_size for runs in self.runs.values() for run in runs)

    @property
    def names(self) -> set[str]:
        """The names of all runs."""
        return {run.name for runs in self.runs.values() for run in runs}

    def to_json(self) -> str:
        """Its file's content."""
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        data["runs"] = {name: [run.to_json() for run in runs] for name, runs in self.runs.items()}
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The manifest of `to_json`."""
        data = json.loads(text)
        data["runs"] = {name: tuple(map(RunInfo.from_json, runs)) for name, runs in data["runs"].items()}
        return cls(**data)


class Versions:
    """The manifests of one partition."""

    def __init__(self, files: StateFiles) -> None:
        self.files = files

    def read(self, version: int) -> Manifest:
        """The state after a batch; `BadState` if it is missing or damaged."""
        if version < 0:
            return Manifest.empty()
        name = f"{version}{MANIFEST}"
        try:
            return Manifest.from_json(self.files.read(name))
        except (ValueError, TypeError, KeyError) as fault:
            raise BadState.torn(f"{self.files}/{name}", fault) from fault

    def write(self, manifest: Manifest, *, keep: set[str]) -> None:
        """Make a state that of its batch, and delete what no repetition of the batch can ask for.

        `keep` are the runs of the batch before.
        """
        with self.files.create(f"{manifest.version}{MANIFEST}") as file:
            file.write(manifest.to_json().encode())
        self._clean_up(manifest.version, manifest.names | keep)

    def numbers(self) -> list[int]:
        """The versions that can be read, oldest first."""
        names = (name.removesuffix(MANIFEST) for name in self.files.names() if name.endswith(MANIFEST))
        return sorted(int(name) for name in names)

    def _clean_up(self, version: int, named: set[str]) -> None:
        for name in self.files.names():
            is_manifest = name.endswith(MANIFEST)
            written = int(name.removesuffix(MANIFEST) if is_manifest else name.partition("-")[0])
            # Another attempt of this batch may have written runs for which it has no manifest yet.
            is_old = written < version - 1 if is_manifest else written < version and name not in named
            if is_old and (is_manifest or name.endswith(SUFFIX)):
                self.files.delete(name)


def merge_start(sizes: Sequence[int]) -> int:
    """The position of the oldest run to merge, given the rows of all runs; the number of runs if none are.

    The newest run comes last. Only neighbors are merged, up to the newest, so that runs stay in order of age.
    A large run is merged with as many of its size, so that each row is written once for each level.

    >>> merge_start([5000, 2000]), merge_start([100_000] + [1000] * 7), merge_start([100_000] + [1000] * 8)
    (2, 8, 1)
    >>> merge_start([1500, 400, 1000])  # all together are not much larger than the newest
    0
    """
    count = len(sizes)
    if count > 1 and (sum(sizes[:-1]) <= 2 * sizes[-1] or count > MOST_RUNS):
        return 0
    levels = [_level(size) for size in sizes]
    for level in sorted(set(levels)):
        start = count
        while start and levels[start - 1] <= level:
            start -= 1
        if levels[start:].count(level) >= FAN:
            return start
    return count


def _level(rows: int) -> int:
    """About how large a run is: each level is `FAN` times the one before.

    >>> [_level(rows) for rows in (1, 1023, 1024 * 8, 1024 * 64)]
    [0, 0, 1, 2]
    """
    return max(0, (rows // SMALLEST).bit_length() - 1) // (FAN.bit_length() - 1)
