"""What a join of streams keeps: segments that are written once, and a list of those that count.

```text
<state>/stage-0/3/
    41                 what counts behind batch 41: a line of JSON, and the bits of rows that had a match
    38-5f0c….segment   rows that batch 38 added, or put together from older ones
```

Batch N goes on from the list of batch N-1 and writes its own, when its segments are there, under another name
until it is whole; a list that is not there was lost, and is an error. Names of segments are never used twice:
a task that runs twice, or a batch that is repeated, writes others. The list of N and the one that N went on
from are kept, with all they name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.columns.joining import JoinState
from headrace.columns.segments import JoinSegment
from headrace.spark.keyed_state import BadState, link_or_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SUFFIX: Final = ".segment"


class SegmentStore:
    """The segments of one partition."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._folder = folder / str(partition)

    def read(self, batch: int) -> JoinState:
        """What the batch before kept, in memory that is the files'."""
        if batch == 0:
            return JoinState()
        note, bits = self._listed(batch - 1)
        has_matches = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.bool_)
        sides, place = [], 0
        for segments, is_marked in zip(note["sides"], note["marked"], strict=True):
            side = []
            for name in segments:
                rows = self._rows(name)
                marks = has_matches[place : place + rows.num_rows] if is_marked else None
                place += rows.num_rows if is_marked else 0
                side.append(JoinSegment(rows=rows, matched=marks, name=name))
            sides.append(tuple(side))
        return JoinState((sides[0], sides[1]), note["watermark_us"])

    def write(self, batch: int, kept: JoinState) -> None:
        """Keep this behind a batch, and remove what no repetition of it can ask for."""
        self._folder.mkdir(parents=True, exist_ok=True)
        note = {
            "watermark_us": kept.watermark_us,
            "marked": [any(segment.matched is not None for segment in side) for side in kept.sides],
            "sides": [[self._stored(batch, segment) for segment in side] for side in kept.sides],
        }
        marks = [segment.matched for side in kept.sides for segment in side if segment.matched is not None]
        bits = np.packbits(np.concatenate(marks)).tobytes() if marks else b""
        aside = self._folder / f".{batch}.{uuid4().hex}"
        aside.write_bytes(json.dumps(note).encode() + b"\n" + bits)
        aside.replace(self._folder / str(batch))
        self._forget(batch)

    def keep(self, batch: int) -> None:
        """Keep what the batch before kept."""
        if batch == 0:
            self.write(batch, JoinState())
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".{batch}.{uuid4().hex}"
        link_or_copy(self._folder / str(batch - 1), aside)
        aside.replace(self._folder / str(batch))
        self._forget(batch)

    def _stored(self, batch: int, segment: JoinSegment) -> str:
        if segment.name:
            return segment.name
        name = f"{batch}-{uuid4().hex}{SUFFIX}"
        with (
            pa.OSFile(str(self._folder / name), "wb") as file,
            pa.ipc.new_file(file, segment.rows.schema) as writer,
        ):
            writer.write_table(segment.rows)
        return name

    def _rows(self, name: str) -> pa.Table:
        try:
            with pa.memory_map(str(self._folder / name)) as file:
                return pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            raise BadState.missing(self._folder / name) from None
        except (pa.ArrowInvalid, OSError) as fault:
            raise BadState.torn(self._folder / name, fault) from fault

    def _listed(self, version: int) -> tuple[dict[str, Any], bytes]:
        path = self._folder / str(version)
        try:
            line, _, bits = path.read_bytes().partition(b"\n")
            return json.loads(line), bits
        except FileNotFoundError:
            raise BadState.missing(path) from None
        except ValueError as fault:
            raise BadState.torn(path, fault) from fault

    def _forget(self, batch: int) -> None:
        """Remove older lists than the one that a batch went on from, and segments that none names."""
        for version in self._versions():
            if version < batch - 1:
                (self._folder / str(version)).unlink(missing_ok=True)
        named = set(self._named([max(batch - 1, 0), batch]))
        for path in self._folder.glob(f"*{SUFFIX}"):
            # What this batch wrote may be of a second attempt that has no list yet.
            if int(path.name.partition("-")[0]) < batch and path.name not in named:
                path.unlink(missing_ok=True)

    def _named(self, versions: Sequence[int]) -> Iterator[str]:
        for version in versions:
            for side in self._listed(version)[0]["sides"]:
                yield from side

    def _versions(self) -> list[int]:
        paths = self._folder.iterdir() if self._folder.exists() else ()
        return [int(path.name) for path in paths if path.name.isdigit()]
