"""Kafka's primitive types, read and written by position: what the hot messages (Produce, Fetch) are made of.

All other messages go through kio. These two carry the payload, so their bytes are walked where they arrived,
and payloads stay views of the buffer or ranges of a file.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from headrace.protocol.errors import ProtocolError
from headrace.protocol.messages import MAX_TAGGED_FIELDS, read_unsigned_varint, skip_tagged_fields

BOOLEAN: Final = struct.Struct(">?")
INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

MAX_ITEMS: Final = 12_000
"""Items of all arrays in one request. Each becomes an object many times the size of its bytes, and while they
are read no other request is served, so the size of the frame alone is no limit."""


class Cursor:
    """A reader of one frame; `flexible` messages have compact lengths and tagged fields."""

    __slots__ = ("flexible", "frame", "items_left", "position")

    def __init__(self, frame: memoryview, position: int, *, flexible: bool) -> None:
        self.frame = frame
        self.position = position
        self.flexible = flexible
        self.items_left = MAX_ITEMS

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several fixed-size fields at once."""
        position = self.position
        end = position + layout.size
        if end > len(self.frame):
            raise ProtocolError("the request ends inside a field")
        self.position = end
        return layout.unpack_from(self.frame, position)

    def length(self, fixed: struct.Struct) -> int:
        """The length of a string, of bytes or of an array; −1 for null."""
        if self.flexible:
            position = self.position
            # Nearly all lengths take one byte; the loop for the others costs more than all the rest.
            if position < len(self.frame) and self.frame[position] < 0x80:
                self.position = position + 1
                return self.frame[position] - 1
            value, self.position = read_unsigned_varint(self.frame, position)
            return value - 1
        (value,) = self.take(fixed)
        return value

    def count(self) -> int:
        """How many items an array has; more than the frame has bytes left is a lie."""
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
        """The next `length` bytes, where they are."""
        start, end = self.position, self.position + length
        if end > len(self.frame):
            raise ProtocolError(
                f"a field of {length} bytes in a request that has {len(self.frame) - start} left"
            )
        self.position = end
        return self.frame[start:end]

    def string(self) -> str | None:
        """A nullable string."""
        length = self.length(INT16)
        if length < 0:
            return None
        try:
            return str(self.view(length), "utf-8")
        except UnicodeDecodeError as fault:
            raise ProtocolError(f"a name that is not UTF-8: {fault}") from fault

    def blob(self) -> memoryview | None:
        """Nullable bytes, as a view of the frame."""
        length = self.length(INT32)
        return None if length < 0 else self.view(length)

    def uuid(self) -> UUID:
        """A topic id."""
        return UUID(bytes=bytes(self.view(16)))

    def tags(self) -> None:
        """Skip tagged fields, where the message has them."""
        if self.flexible:
            start = self.position
            self.position = skip_tagged_fields(self.frame, start)
            if self.position > start + 1:
                self._spend(MAX_TAGGED_FIELDS)


def pack_unsigned_varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_count(count: int, *, flexible: bool) -> bytes:
    """The length of an array; −1 for null."""
    return pack_unsigned_varint(count + 1) if flexible else INT32.pack(count)


def pack_string(text: str | None, *, flexible: bool) -> bytes:
    """A nullable string."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (pack_unsigned_varint(len(data) + 1) if flexible else INT16.pack(len(data))) + data
