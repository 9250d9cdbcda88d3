"""Records into batches, one by one and in plain Python.

The compiled kernels of `headrace.columns` are faster for columns, but bring Arrow and a compiler into a
process that is to stay small, and rows come one at a time here: 1 µs each, in `bench/capture`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import TRANSACTIONAL, build_batch
from headrace.protocol.records import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.identity import Identity

SMALL: Final = [encode_varint(number) for number in range(1 << 12)]
"""The numbers that lengths and positions mostly are."""
SMALL_COUNT: Final = len(SMALL)
NULL: Final = b"\x01"
NO_HEADERS: Final = b"\x00"


class BatchBuilder:
    """The records of one partition that wait to be sent."""

    __slots__ = ("_parts", "base_ms", "count", "newest_ms", "size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._parts: list[bytes] = []
        self.count = 0
        self.size = 0
        """About how many bytes they take."""
        self.base_ms = 0
        self.newest_ms = 0

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: bytes = NO_HEADERS
    ) -> None:
        """Add a record; its headers are encoded."""
        count = self.count
        if not count:
            self.base_ms = self.newest_ms = timestamp_ms
        elif timestamp_ms > self.newest_ms:
            self.newest_ms = timestamp_ms
        delta = timestamp_ms - self.base_ms
        body = b"".join(
            (
                b"\x00",
                SMALL[delta] if 0 <= delta < SMALL_COUNT else encode_varint(delta),
                SMALL[count] if count < SMALL_COUNT else encode_varint(count),
                NULL if key is None else _length(key),
                key or b"",
                NULL if value is None else _length(value),
                value or b"",
                headers,
            )
        )
        self._parts.append(_length(body))
        self._parts.append(body)
        self.count = count + 1
        self.size += len(body)

    def build(self, identity: Identity, base_sequence: int) -> bytearray:
        """The batch of all records, as part of a producer's transaction; the builder is empty then."""
        batch = build_batch(
            b"".join(self._parts),
            self.count,
            base_timestamp=self.base_ms,
            max_timestamp=self.newest_ms,
            attributes=TRANSACTIONAL,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base_sequence,
        )
        self.clear()
        return batch


def _length(data: bytes) -> bytes:
    size = len(data)
    return SMALL[size] if size < SMALL_COUNT else encode_varint(size)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Headers as they stand at the end of a record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += [_length(encoded), encoded]
        parts += [NULL] if value is None else [_length(value), value]
    return b"".join(parts)
