"""When offsets have served their time: the rules of `offsets.retention.minutes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.groups.records import NO_TIME
from headrace.broker.groups.standing import CONSUMER_PROTOCOL
from headrace.broker.groups.states import GroupState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.groups.records import CommittedOffset
    from headrace.broker.groups.standing import Standing


def expired_offsets(
    group: Standing, offsets: Mapping[tuple[str, int], CommittedOffset], now_ms: int
) -> list[tuple[str, int]]:
    """The partitions whose offsets the group no longer needs.

    A group that had members keeps its offsets for the retention time after the last one left; while it is
    stable, it loses those of topics that it no longer reads. A group that only commits loses each offset
    when it has not been committed again for that long.
    """
    return [
        where
        for where, committed in offsets.items()
        if not group.is_subscribed_to(where[0]) and _is_expired(group, committed, now_ms)
    ]


def _is_expired(group: Standing, committed: CommittedOffset, now_ms: int) -> bool:
    unused_since_ms = _unused_since_ms(group, committed)
    if unused_since_ms is None:
        return False
    if committed.expires_at_ms != NO_TIME:
        return now_ms >= committed.expires_at_ms
    return now_ms - unused_since_ms >= group.settings.offsets_retention_ms


def _unused_since_ms(group: Standing, committed: CommittedOffset) -> int | None:
    if group.protocol_type is None:
        return committed.committed_at_ms
    if group.state is GroupState.EMPTY:
        return group.since_ms
    knows_topics = group.protocol_type == CONSUMER_PROTOCOL and group.subscribed is not None
    if knows_topics and group.state is GroupState.STABLE:
        return committed.committed_at_ms
    return None
