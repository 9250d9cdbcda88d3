"""Which parts of a share partition's state are to be written, and which are in the log already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.broker.shares.states import Run

CHUNK: Final = 64
"""Offsets whose states are stored together: an acknowledgement out of order writes one chunk."""
UNKNOWN: Final = -1

Changed = dict[int, "Sequence[Run]"]


class Chunks:
    """The chunks of one share partition."""

    __slots__ = ("_dirty", "_start", "stored")

    def __init__(self, start: int | None) -> None:
        self._dirty: set[int] = set()
        self._start = UNKNOWN if start is None else start
        self.stored: set[int] = set()
        """The chunks of which something is in the log."""

    def touch(self, first: int, last: int) -> None:
        """Note that the states of these offsets have changed."""
        self._dirty.update(range(first // CHUNK, last // CHUNK + 1))

    def take(
        self, start: int, runs_between: Callable[[int, int], Sequence[Run]]
    ) -> tuple[int | None, Changed]:
        """The new start, if it moved, and the chunks that changed, empty ones to be deleted."""
        first_chunk = start // CHUNK
        changed: Changed = {}
        if first_chunk != self._start // CHUNK:
            changed = {chunk: () for chunk in self.stored if chunk < first_chunk}
        for chunk in self._dirty:
            if chunk >= first_chunk:
                runs = runs_between(max(chunk * CHUNK, start), chunk * CHUNK + CHUNK - 1)
                if runs or chunk in self.stored:
                    changed[chunk] = runs
        self._dirty.clear()
        for chunk, kept in changed.items():
            (self.stored.add if kept else self.stored.discard)(chunk)
        moved = start if start != self._start else None
        self._start = start
        return moved, changed

    def untake(self, changed: Iterable[int]) -> None:
        """Undo `take`: it could not be stored, and is to be tried again with the next changes."""
        self._dirty.update(changed)
        self.stored.update(changed)
        self._start = UNKNOWN
