"""How far the groups have read: the seam between a topic's bound and those who make room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.offsets import Offsets


class Positions(Protocol):
    """Where groups, of whatever kind, go on reading."""

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The first offset that the group has not finished with; None when it holds nothing back."""
        ...


class CommittedPositions:
    """Positions by committed offsets.

    A group holds a partition from its first commit there until its offset is deleted or expires, with members
    or without: consumers that are being restarted still have everything to read. A group that is not there,
    not yet or no longer, holds nothing.
    """

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The offset that the group committed last."""
        committed = self._offsets.get(group_id, topic, partition)
        return None if committed is None else committed.offset
