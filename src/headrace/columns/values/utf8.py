"""Bytes as text, with an error that says where they are none."""

from __future__ import annotations

from headrace.columns.values.errors import BadValue


def decoded(value: bytes) -> str:
    """The text that `value` is in UTF-8, or `BadValue`."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8: byte 0x{value[error.start]:02x} at byte {error.start + 1}") from None
