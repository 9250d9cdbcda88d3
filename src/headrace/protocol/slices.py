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
        for _ in range(self._header.count):
            start = position
            length, body = decode_varint(self._section, position)
            _, after_time = decode_varint(self._section, body + 1, 64)
            delta, _ = decode_varint(self._section, after_time)
            position = body + length
            self._places[self._header.base_offset + delta] = (start, position)

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
