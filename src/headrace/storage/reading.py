"""Finding batches in the segments of a log."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.storage.segment import Segment, Step


class Found(NamedTuple):
    """One batch, and the segment in which it is."""

    segment: Segment
    step: Step


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def find_batch(segments: Sequence[Segment], offset: int) -> Found | None:
    """The batch that holds `offset`, or the next one where compaction left a gap."""
    index = bisect_right(segments, offset, key=_base_offset) - 1
    for segment in segments[max(index, 0) :]:
        step = segment.locate(offset)
        if step is not None:
            return Found(segment, step)
    return None


def fitting_range(found: Found, limit: int, max_bytes: int, *, at_least_one: bool) -> FileRange | None:
    """Whole batches from the one found to the position `limit`, as many as `max_bytes` allow.

    With `at_least_one` the first batch comes even if it is larger.
    """
    segment, step = found
    position = step.position
    size = limit - position
    if size > max_bytes:
        size = segment.offset_index.boundary(position, position + max_bytes) - position
        if size <= 0:
            size = step.size if step.size <= max_bytes or at_least_one else 0
    return FileRange(segment.file, position, size) if size > 0 else None


def size_from(segments: Sequence[Segment], offset: int) -> int:
    """Bytes of the batches from the one that holds `offset` to the end."""
    found = find_batch(segments, offset)
    if found is None:
        return 0
    later = sum(segment.size for segment in segments if segment.base_offset > found.segment.base_offset)
    return found.segment.size - found.step.position + later


def offset_within(segments: Sequence[Segment], size: int) -> int | None:
    """The first offset from which on the batches have at most `size` bytes; None when all of them have."""
    for segment in reversed(segments):
        if segment.size > size:
            return _offset_at(segment, segment.size - size)
        size -= segment.size
    return None


def _offset_at(segment: Segment, position: int) -> int:
    """The offset after the first batch that ends at or behind `position`."""
    start = segment.offset_index.boundary(0, position - 1)
    return next(step.last_offset + 1 for step in segment.walk(start) if step.position + step.size >= position)
