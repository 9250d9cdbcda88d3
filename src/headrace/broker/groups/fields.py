"""Kafka's field types in records of internal topics: numbers, strings and bytes, plain and compact."""

from __future__ import annotations

import struct
from typing import Final, Self

from headrace.errors import HeadraceError

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_LONGEST_STRING: Final = 2**15 - 1


class TornRecord(HeadraceError):
    """A record of an internal topic that ends inside a field, or says a length that it does not have."""


class FieldWriter:
    """The bytes of a record, field after field."""

    def __init__(self) -> None:
        self._data = bytearray()

    def i16(self, value: int) -> Self:
        """Append a number of two bytes."""
        self._data += _I16.pack(value)
        return self

    def i32(self, value: int) -> Self:
        """Append a number of four bytes."""
        self._data += _I32.pack(value)
        return self

    def i64(self, value: int) -> Self:
        """Append a number of eight bytes."""
        self._data += _I64.pack(value)
        return self

    def string(self, value: str | None) -> Self:
        """Append a string, or the absence of one."""
        if value is None:
            return self.i16(-1)
        data = value.encode()
        self.i16(len(data))
        self._data += data
        return self

    def blob(self, value: bytes) -> Self:
        """Append bytes."""
        self.i32(len(value))
        self._data += value
        return self

    def done(self) -> bytes:
        """The whole record."""
        return bytes(self._data)


class FieldReader:
    """The fields of a record, one after the other; raises `TornRecord` when they do not fit the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.compact = False
        """Whether lengths are varints that count one too many, as versions with tagged fields have them."""

    def i16(self) -> int:
        """The next two bytes as a number."""
        return self._number(_I16)

    def i32(self) -> int:
        """The next four bytes as a number."""
        return self._number(_I32)

    def i64(self) -> int:
        """The next eight bytes as a number."""
        return self._number(_I64)

    def string(self) -> str:
        """The next string; an absent one is empty."""
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        """The next string, if there is one."""
        length = self._varint() - 1 if self.compact else self.i16()
        return None if length < 0 else self._take(length).decode()

    def blob(self) -> bytes:
        """The next bytes; absent ones are empty."""
        length = self._varint() - 1 if self.compact else self.i32()
        return b"" if length < 0 else self._take(length)

    def count(self) -> int:
        """How many entries the array that follows has."""
        count = self._varint() - 1 if self.compact else self.i32()
        if count > len(self._data) - self._position:
            raise TornRecord(f"an array of {count} entries in a record of {len(self._data)} bytes")
        return max(count, 0)

    def tagged_fields(self) -> None:
        """Skip the tagged fields that follow, where the version has them."""
        if not self.compact:
            return
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self._take(layout.size))[0]
        return value

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise TornRecord("a length of more than five bytes")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise TornRecord(f"a field of {size} bytes at {self._position} of a record of {len(self._data)}")
        data = self._data[self._position : end]
        self._position = end
        return data


def fits_string(text: str | None) -> bool:
    """Whether a string field can hold `text`; a client of newer versions may send longer ones."""
    return text is None or len(text.encode()) <= _LONGEST_STRING
