"""Ticks: a batch without rows after the last one with rows, so that what the watermark closes comes out.

Spark moves the watermark between batches: rows of batch N close windows in batch N+1. Spark itself adds such
a batch only for its own operators. A stream that ticks does it for all: when nothing new is there, and
something was read since the last tick, its journal says so, which makes a new batch. The sign holds what had
been read (the sum of all offsets, and the heartbeat), so that a job that rests does not tick again, nor does
one that is started anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.partition import TopicPartition


def what_was_read(positions: Mapping[TopicPartition, int], heartbeat_ms: int) -> int:
    """A number that changes with all that can move the watermark.

    >>> from headrace.client.partition import TopicPartition
    >>> what_was_read({TopicPartition("orders", 0): 12, TopicPartition("orders", 1): 3}, 0)
    15
    """
    return sum(positions.values()) + heartbeat_ms


def next_tick(
    tick: int,
    *,
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    heartbeats_ms: tuple[int, int],
) -> int:
    """The sign for a batch that reads from `before` to `after`: another than `tick` where it is a tick."""
    reads = before != after or heartbeats_ms[0] != heartbeats_ms[1]
    return tick if reads else what_was_read(after, heartbeats_ms[1])
