"""Tokens as text (escapes of strings resolved, everything else as written) and as bytes (from base64)."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.columns.buffers import valid_bits
from headrace.columns.values.json_scanner import BACKSLASH, hex_digit
from headrace.columns.values.tokens import ESCAPED, NULL, STRING
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from headrace.columns.values.tokens import Flags, Places, Tokens
    from headrace.protocol.kernels import Octets


def strings(tokens: Tokens) -> pa.StringArray:
    """The text of each token."""
    present = tokens.present
    sizes = (tokens.stops - tokens.starts)[present]
    # Resolving escapes only shortens a text, so this is enough.
    text = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
    offsets = np.empty(len(tokens.kinds) + 1, np.int32)
    _copy_text(tokens, text, offsets)
    buffers = [valid_bits(present), pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(tokens.kinds), buffers)


@borrowing
def _copy_text(
    tokens: Tokens,
    text: Flags,
    offsets: Places,
) -> None:
    """Write the text of all tokens one after the other."""
    data, kinds, starts, stops, rows, doubtful = tokens
    position = 0
    for index in range(len(kinds)):
        offsets[index] = position
        if kinds[index] <= NULL:
            continue
        if kinds[index] == ESCAPED:
            after = _unescape(data, int(starts[index]), int(stops[index]), text, position)
            if after < 0:
                doubtful[rows[index]] = 1
            else:
                position = after
            continue
        for source in range(starts[index], stops[index]):
            text[position] = data[source]
            position += 1
    offsets[len(kinds)] = position


@borrowing
def _unescape(data: Octets, source: int, stop: int, text: Flags, position: int) -> int:
    """Write an unescaped string at `position`; the position after it, or −1 if it is invalid."""
    while source < stop:
        byte = data[source]
        if byte != BACKSLASH:
            text[position] = byte
            position += 1
            source += 1
            continue
        letter = int(data[source + 1])
        if letter != 117:
            text[position] = _meaning(letter)
            position += 1
            source += 2
            continue
        code = _hex4(data, source + 2)
        source += 6
        if 0xD800 <= code <= 0xDFFF:
            low = -1
            if code < 0xDC00 and source + 6 <= stop and data[source] == BACKSLASH and data[source + 1] == 117:
                low = _hex4(data, source + 2)
            if not 0xDC00 <= low <= 0xDFFF:
                return -1
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            source += 6
        position = _write_code(text, position, code)
    return position


@borrowing
def _meaning(letter: int) -> int:
    """The character of a backslash and this letter."""
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    return 12 if letter == 102 else letter


@borrowing
def _hex4(data: Octets, position: int) -> int:
    """The number that four hexadecimal digits stand for."""
    code = 0
    for index in range(position, position + 4):
        code = code * 16 + hex_digit(int(data[index]))
    return code


@borrowing
def _write_code(text: Flags, position: int, code: int) -> int:
    """Write a character in UTF-8 at `position`; the position after it."""
    if code < 0x80:
        text[position] = code
        return position + 1
    if code < 0x800:
        text[position] = 0xC0 | code >> 6
        text[position + 1] = 0x80 | code & 0x3F
        return position + 2
    if code < 0x10000:
        text[position] = 0xE0 | code >> 12
        text[position + 1] = 0x80 | code >> 6 & 0x3F
        text[position + 2] = 0x80 | code & 0x3F
        return position + 3
    text[position] = 0xF0 | code >> 18
    text[position + 1] = 0x80 | code >> 12 & 0x3F
    text[position + 2] = 0x80 | code >> 6 & 0x3F
    text[position + 3] = 0x80 | code & 0x3F
    return position + 4


def binaries(tokens: Tokens) -> pa.BinaryArray:
    """The bytes of each token."""
    strange = tokens.present & (tokens.kinds != STRING) & (tokens.kinds != ESCAPED)
    tokens.doubtful[tokens.rows[strange]] = 1
    return pa.array(
        [_from_base64(text, tokens, index) for index, text in enumerate(strings(tokens).to_pylist())],
        pa.binary(),
    )


def _from_base64(text: str | None, tokens: Tokens, index: int) -> bytes | None:
    try:
        return None if text is None else binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        tokens.doubtful[tokens.rows[index]] = 1
        return b""
