"""Some records of a batch as a batch of their own, at their offsets: what a queue takes of a large one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.protocol.batch import CODEC_MASK, build_batch, read_header
from headrace.protocol.records import decode_varint, open_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.protocol.compression import Bytes


class OpenBatch:
    """A batch whose records have been found; cut as often as one likes."""

    __slots__ = ("_header", "_places", "_section")

    def __init__(self, batch: Bytes) -> None:
        self._header = read_header(batch)
        self._section = bytes(open_records(batch, self._header))
        self._places: dict[int, tuple[int, int]] = {}
        position = 0
        # Without gaps the offsets need not be read: a queue opens every batch that it cuts, record by record.
        has_gaps = self._header.count != self._header.last_offset_delta + 1
        for delta in range(self._header.count):
            start = position
            length, body = decode_varint(self._section, position)
            position = body + length
            offset = self._header.base_offset + (_delta(self._section, body) if has_gaps else delta)
            self._places[offset] = (start, position)

    @property
    def base_offset(self) -> int:
        """Where the batch begins."""
        return self._header.base_offset

    def cut(self, offsets: Iterable[int]) -> bytes:
        """A batch of the records at these offsets, not compressed; those that are not there are left out."""
        found = [(offset, self._places[offset]) for offset in offsets if offset in self._places]
        header = self._header
        records = b"".join(self._section[start:end] for _, (start, end) in found)
        return bytes(
            build_batch(
                records,
                len(found),
                base_timestamp=header.base_timestamp,
                max_timestamp=header.max_timestamp,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                attributes=header.attributes & ~CODEC_MASK,
                last_offset_delta=found[-1][0] - header.base_offset if found else 0,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
        )


def _delta(section: bytes, body: int) -> int:
    """How far behind the start of its batch a record lies."""
    _, after_time = decode_varint(section, body + 1, 64)
    return decode_varint(section, after_time)[0]
