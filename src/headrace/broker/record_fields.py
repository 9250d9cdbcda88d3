"""Field types of Kafka's schemas in records of internal topics, in plain and in compact encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from headrace.errors import HeadraceError
from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import INT8, INT16, INT32, INT64, pack_unsigned_varint, read_unsigned_varint

if TYPE_CHECKING:
    import struct
    from collections.abc import Mapping

_MAX_STRING_BYTES: Final = 2**15 - 1


class TruncatedRecord(HeadraceError):
    """A record of an internal topic that is shorter than its fields."""


class FieldWriter:
    """Encodes a record field by field.

    With `compact`, lengths are unsigned varints of length + 1, as in versions with tagged fields.
    """

    def __init__(self, *, compact: bool = False) -> None:
        self._data = bytearray()
        self._compact = compact

    def i8(self, value: int) -> Self:
        """Append an int8."""
        self._data += INT8.pack(value)
        return self

    def i16(self, value: int) -> Self:
        """Append an int16."""
        self._data += INT16.pack(value)
        return self

    def i32(self, value: int) -> Self:
        """Append an int32."""
        self._data += INT32.pack(value)
        return self

    def i64(self, value: int) -> Self:
        """Append an int64."""
        self._data += INT64.pack(value)
        return self

    def string(self, value: str | None) -> Self:
        """Append a string or null."""
        data = b"" if value is None else value.encode()
        length = -1 if value is None else len(data)
        self._varint(length + 1) if self._compact else self.i16(length)
        self._data += data
        return self

    def blob(self, value: bytes) -> Self:
        """Append bytes."""
        self.count(len(value))
        self._data += value
        return self

    def count(self, count: int | None) -> Self:
        """Append the length of an array, or null."""
        length = -1 if count is None else count
        return self._varint(length + 1) if self._compact else self.i32(length)

    def tagged_fields(self, fields: Mapping[int, bytes] | None = None) -> Self:
        """Append tagged fields, by tag in ascending order."""
        fields = fields or {}
        self._varint(len(fields))
        for tag, data in fields.items():
            self._varint(tag)._varint(len(data))
            self._data += data
        return self

    def done(self) -> bytes:
        """The whole record."""
        return bytes(self._data)

    def _varint(self, number: int) -> Self:
        self._data += pack_unsigned_varint(number)
        return self


class FieldReader:
    """Decodes a record field by field; raises `TruncatedRecord` when the record is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.compact = False
        """Whether lengths are unsigned varints that are one larger."""

    def i8(self) -> int:
        """The next int8."""
        return self._number(INT8)

    def i16(self) -> int:
        """The next int16."""
        return self._number(INT16)

    def i32(self) -> int:
        """The next int32."""
        return self._number(INT32)

    def i64(self) -> int:
        """The next int64."""
        return self._number(INT64)

    def string(self) -> str:
        """The next string; null is empty."""
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        """The next string or null."""
        length = self._varint() - 1 if self.compact else self.i16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        """The next bytes; null is empty."""
        length = self._varint() - 1 if self.compact else self.i32()
        return b"" if length < 0 else self._take(length)

    def count(self) -> int:
        """The length of the next array; null is empty."""
        count = self._varint() - 1 if self.compact else self.i32()
        if count > len(self._data) - self._position:
            raise TruncatedRecord(f"an array of {count} entries in a record of {len(self._data)} bytes")
        return max(count, 0)

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields that follow, by tag; none in versions without tagged fields."""
        count = self._varint() if self.compact else 0
        return {self._varint(): self._take(self._varint()) for _ in range(count)}

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self._take(layout.size))[0]
        return value

    def _varint(self) -> int:
        try:
            value, self._position = read_unsigned_varint(self._data, self._position)
        except ProtocolError as fault:
            raise TruncatedRecord(f"a length cannot be read: {fault}") from fault
        return value

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise TruncatedRecord(
                f"a field of {size} bytes at {self._position} in a record of {len(self._data)} bytes"
            )
        data = self._data[self._position : end]
        self._position = end
        return data


def fits_string(text: str | None) -> bool:
    """Whether a plain string field can hold `text`; compact strings in requests may be longer."""
    return text is None or len(text.encode()) <= _MAX_STRING_BYTES
