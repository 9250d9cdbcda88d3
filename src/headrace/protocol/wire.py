"""Kafka's primitive types, decoded from a frame without copies, and work in steps.

Decoding and encoding of large messages is done in steps: a generator yields where the broker's event loop may
do something else, and returns the result.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from uuid import UUID

from headrace.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

BOOLEAN: Final = struct.Struct(">?")
INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
FLOAT64: Final = struct.Struct(">d")

MAX_TAGGED_FIELDS: Final = 100
"""Tagged fields that are skipped in one place; Kafka's messages have fewer than ten."""
UNLIMITED: Final = 1 << 62
MAX_ITEMS: Final = 12_000
"""The most items of all arrays in one request. Each becomes an object many times the size of its bytes."""


T = TypeVar("T")


def read_unsigned_varint(frame: bytes | memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position`, and the position after it."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            raise ProtocolError("the frame ends within a varint")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a varint of more than five bytes")


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """The position after the tagged fields at `position`."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    if count > MAX_TAGGED_FIELDS:
        raise ProtocolError(f"{count} tagged fields in one place: at most {MAX_TAGGED_FIELDS} are allowed")
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise ProtocolError("a tagged field is longer than its frame")
    return position


class FrameCursor:
    """Decodes one frame; `flexible` messages have compact lengths and tagged fields."""

    __slots__ = ("flexible", "frame", "items_left", "position")

    def __init__(
        self, frame: memoryview, position: int, *, flexible: bool, max_items: int = MAX_ITEMS
    ) -> None:
        self.frame = frame
        self.position = position
        self.flexible = flexible
        self.items_left = max_items

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """Decode fields of fixed size."""
        position = self.position
        end = position + layout.size
        if end > len(self.frame):
            raise ProtocolError("the frame ends within a field")
        self.position = end
        return layout.unpack_from(self.frame, position)

    def length(self, fixed: struct.Struct) -> int:
        """Decode the length of a string, bytes or an array; −1 for null."""
        if self.flexible:
            position = self.position
            # Most lengths take one byte.
            if position < len(self.frame) and self.frame[position] < 0x80:
                self.position = position + 1
                return self.frame[position] - 1
            value, self.position = read_unsigned_varint(self.frame, position)
            return value - 1
        (value,) = self.take(fixed)
        return value

    def count(self) -> int:
        """Decode the length of an array, which cannot be larger than the rest of the frame."""
        count = self.length(INT32)
        if count > len(self.frame) - self.position:
            raise ProtocolError(f"an array of {count} items in {len(self.frame) - self.position} bytes")
        if count > 0:
            self._spend(count)
        return count

    def _spend(self, items: int) -> None:
        self.items_left -= items
        if self.items_left < 0:
            raise ProtocolError(f"more than {MAX_ITEMS} items in one request: send several smaller ones")

    def view(self, length: int) -> memoryview:
        """A view of the next `length` bytes."""
        start, end = self.position, self.position + length
        if end > len(self.frame):
            raise ProtocolError(
                f"a field of {length} bytes in a frame that has {len(self.frame) - start} left"
            )
        self.position = end
        return self.frame[start:end]

    def string(self) -> str | None:
        """Decode a nullable string."""
        length = self.length(INT16)
        if length < 0:
            return None
        try:
            return str(self.view(length), "utf-8")
        except UnicodeDecodeError as fault:
            raise ProtocolError(f"a string that is not UTF-8: {fault}") from fault

    def blob(self) -> memoryview | None:
        """Decode nullable bytes, as a view of the frame."""
        length = self.length(INT32)
        return None if length < 0 else self.view(length)

    def uuid(self) -> UUID:
        """Decode a UUID."""
        return UUID(bytes=bytes(self.view(16)))

    def tags(self) -> None:
        """Skip the tagged fields of a flexible message."""
        if self.flexible:
            start = self.position
            self.position = skip_tagged_fields(self.frame, start)
            if self.position > start + 1:
                self._spend(MAX_TAGGED_FIELDS)


def pack_unsigned_varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_count(count: int, *, flexible: bool) -> bytes:
    """Encode the length of an array; −1 for null."""
    return pack_unsigned_varint(count + 1) if flexible else INT32.pack(count)


def pack_string(text: str | None, *, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (pack_unsigned_varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


class Steps(Generic[T]):
    """Iterates over the steps of a generator; `result` is its return value."""

    result: T

    def __init__(self, steps: Generator[object, None, T]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[object]:
        self.result = yield from self._steps


def run_steps(steps: Generator[object, None, T]) -> T:
    """Run all steps and return the result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
