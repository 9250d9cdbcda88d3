"""What a delivery keeps next to the checkpoint: the rows a target refused, and the number of the generation.

Refused rows are dead letters, and those are written in the log's transaction, after the targets. A crash
between the two leaves a target that has the batch without them, and will not be asked again: only the journal
knows them then. So it is on disk before the target is given the batch without them.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.folders import Folder

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
