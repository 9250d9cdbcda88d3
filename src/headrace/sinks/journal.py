"""What a delivery keeps on disk: which rows a target refused, and which series of batches this is.

Refused rows are dead letters, and those are written in the log's transaction, after the targets. A crash
between the two leaves a target that has the batch without them, and will not be asked again: only the journal
knows them then. So it is on disk before the target is given the batch without them.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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

    def __init__(self, folder: Path, target: str) -> None:
        self._path = folder / REFUSED
        self._target = target

    def write(self, batch: int, letters: Sequence[Letter]) -> None:
        """Keep the letters of a batch, in place of those of others."""
        listed = [
            {"reason": each.reason, "value": each.value, "row": b64encode(each.row).decode()}
            for each in letters
        ]
        write_durably(self._path, {"batch": batch, "letters": listed})

    def forget_after(self, batch: int) -> None:
        """Forget letters of a later batch than the newest that the target has.

        They are of a process that ended before the target had the batch: it is tried anew, as a whole.
        """
        kept = _read(self._path)
        if kept is not None and kept["batch"] > batch:
            self.write(kept["batch"], [])

    def read(self, batch: int) -> list[Letter]:
        """The letters of a batch; none if no row of it was refused."""
        kept = _read(self._path)
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


def generation_of(folder: Path) -> int:
    """The number of the series of batches that a folder is for; the first time, one above all before it.

    It is the time when the series began: a state folder that was deleted does not bring old numbers back.
    """
    kept = _read(folder / GENERATION)
    if kept is None:
        kept = {"generation": time.time_ns() // 1_000_000}
        write_durably(folder / GENERATION, kept)
    return int(kept["generation"])


def write_durably(path: Path, content: dict[str, Any]) -> None:
    """Put a file in place as a whole: after a power cut the old one or the new one is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    assert isinstance(content, dict)
    return content
