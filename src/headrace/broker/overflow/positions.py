"""How far the groups have read: the seam between a topic's bound and those who make room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.offsets import Offsets
    from headrace.broker.shares import ShareGroupCoordinator
    from headrace.broker.topics import Topics


class Positions(Protocol):
    """Where groups, of whatever kind, go on reading."""

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The first offset that the group has not finished with; None when it holds nothing back."""
        ...


class GroupPositions:
    """Positions by committed offsets, and of share groups by the first record that is not done.

    A group holds a partition from its first commit there until its offset is deleted or expires, with members
    or without: consumers that are being restarted still have everything to read. A group that is not there,
    not yet or no longer, holds nothing.
    """

    def __init__(self, offsets: Offsets, shares: ShareGroupCoordinator, topics: Topics) -> None:
        self._offsets = offsets
        self._shares = shares
        self._topics = topics

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The offset that the group committed last, or up to which a share group is done."""
        committed = self._offsets.get(group_id, topic, partition)
        if committed is not None:
            return committed.offset
        found = self._topics.get(topic)
        share = None if found is None else self._shares.get(group_id, found.id, partition)
        return None if share is None else share.state.start_offset
