"""Compiled steps through the text of a JSON value, as strict as RFC 8259.

Every step takes the position where it starts and the end of the value, and never looks beyond that end. A
step that finds something else than JSON says so by a position of −1 or by the kind BROKEN; the reference
parser then finds out what is wrong, so that these steps carry no messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.columns.values.tokens import BROKEN, ESCAPED, FALSE, FRACTION, INTEGER, NULL, STRING, TRUE
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from headrace.protocol.kernels import Octets

CLOSED: Final = 0
MEMBER: Final = 1
FAULT: Final = 2

QUOTE: Final = 34
BACKSLASH: Final = 92
OPEN_OBJECT: Final = 123
CLOSE_OBJECT: Final = 125
OPEN_ARRAY: Final = 91
CLOSE_ARRAY: Final = 93
_COMMA: Final = 44
_COLON: Final = 58
_MAX_SKIPPED_LEVELS: Final = 64
_LITERALS: Final = np.frombuffer(b"truefalsenull", np.uint8)


@borrowing
def after_space(data: Octets, position: int, end: int) -> int:
    """The position of the next byte that is not white space."""
    while position < end and data[position] <= 32:
        byte = data[position]
        if byte not in (32, 10, 13, 9):
            return position
        position += 1
    return position


@borrowing
def after_sequence(data: Octets, position: int, end: int) -> int:
    """The position after the UTF-8 sequence of two to four bytes at `position`; −1 when it is malformed."""
    first = data[position]
    low, high = 0x80, 0xBF
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        # Neither a longer form than needed nor a surrogate.
        low = 0xA0 if first == 0xE0 else 0x80
        high = 0x9F if first == 0xED else 0xBF
    elif 0xF0 <= first <= 0xF4:
        size = 4
        low = 0x90 if first == 0xF0 else 0x80
        high = 0x8F if first == 0xF4 else 0xBF
    else:
        return -1
    if position + size > end or data[position + 1] < low or data[position + 1] > high:
        return -1
    for index in range(position + 2, position + size):
        if data[index] & 0xC0 != 0x80:
            return -1
    return position + size


@borrowing
def hex_digit(byte: int) -> int:
    """The value of a hexadecimal digit, or −1."""
    if 48 <= byte <= 57:
        return byte - 48
    lower = byte | 32
    return lower - 87 if 97 <= lower <= 102 else -1


@borrowing
def after_escape(data: Octets, position: int, end: int) -> int:
    """The position after the escape whose backslash is at `position`, or −1 when it is none."""
    if position + 1 >= end:
        return -1
    byte = data[position + 1]
    if byte != 117:
        # One of " \ / b f n r t.
        return position + 2 if byte in (34, 92, 47, 98, 102, 110, 114, 116) else -1
    if position + 6 > end:
        return -1
    for index in range(position + 2, position + 6):
        if hex_digit(int(data[index])) < 0:
            return -1
    return position + 6


@borrowing
def string_stop(data: Octets, position: int, end: int) -> tuple[int, bool]:
    """The position of the quote (−1: none) that ends the text at `position`, and whether it has escapes."""
    escaped = False
    while position < end:
        byte = data[position]
        if byte == QUOTE:
            return position, escaped
        if byte < 32:
            break
        if byte == BACKSLASH:
            escaped = True
            position = after_escape(data, position, end)
        elif byte >= 128:
            position = after_sequence(data, position, end)
        else:
            position += 1
        if position < 0:
            break
    return -1, False


@borrowing
def after_digits(data: Octets, position: int, end: int) -> int:
    """The position of the next byte that is no decimal digit."""
    while position < end and 48 <= data[position] <= 57:
        position += 1
    return position


@borrowing
def number_stop(data: Octets, position: int, end: int) -> tuple[int, int]:
    """The kind of the number at `position` and the position after it."""
    first = position + (1 if data[position] == 45 else 0)
    stop = after_digits(data, first, end)
    if stop == first or (data[first] == 48 and stop > first + 1):
        return BROKEN, -1
    kind = INTEGER
    if stop < end and data[stop] == 46:
        kind = FRACTION
        point = stop
        stop = after_digits(data, point + 1, end)
        if stop == point + 1:
            return BROKEN, -1
    if stop < end and data[stop] | 32 == 101:
        kind = FRACTION
        first = stop + 1
        if first < end and data[first] in (43, 45):
            first += 1
        stop = after_digits(data, first, end)
        if stop == first:
            return BROKEN, -1
    return kind, stop


@borrowing
def literal(data: Octets, position: int, end: int) -> tuple[int, int]:
    """The kind of `true`, `false` or `null` at `position` and the position after it."""
    byte = data[position]
    kind, start, size = BROKEN, 0, 0
    if byte == 116:
        kind, start, size = TRUE, 0, 4
    elif byte == 102:
        kind, start, size = FALSE, 4, 5
    elif byte == 110:
        kind, start, size = NULL, 9, 4
    if kind == BROKEN or position + size > end:
        return BROKEN, -1
    for index in range(size):
        if data[position + index] != _LITERALS[start + index]:
            return BROKEN, -1
    return kind, position + size


@borrowing
def scalar(data: Octets, position: int, end: int) -> tuple[int, int, int, int]:
    """The token at `position`: its kind, start and stop, and the position after it."""
    byte = data[position]
    if byte == QUOTE:
        stop, escaped = string_stop(data, position + 1, end)
        if stop < 0:
            return BROKEN, -1, -1, -1
        return ESCAPED if escaped else STRING, position + 1, stop, stop + 1
    if byte == 45 or 48 <= byte <= 57:
        kind, stop = number_stop(data, position, end)
    else:
        kind, stop = literal(data, position, end)
    return kind, position, stop, stop


@borrowing
def next_member(data: Octets, position: int, end: int, closing: int, fresh: bool) -> tuple[int, int]:
    """What comes next in a container that ends with `closing`: CLOSED, MEMBER or FAULT, and its position.

    `fresh` says that the container was just opened, so that no comma comes before its first member.
    """
    position = after_space(data, position, end)
    if position >= end:
        return FAULT, position
    byte = data[position]
    if byte == closing:
        return CLOSED, position + 1
    if fresh:
        return MEMBER, position
    if byte != _COMMA:
        return FAULT, position
    position = after_space(data, position + 1, end)
    return MEMBER if position < end else FAULT, position


@borrowing
def read_key(data: Octets, position: int, end: int) -> tuple[int, int, bool]:
    """The position of a member's value (−1: none), where its key stops, and whether the key has escapes."""
    if data[position] != QUOTE:
        return -1, -1, False
    stop, escaped = string_stop(data, position + 1, end)
    if stop < 0:
        return -1, -1, False
    position = after_space(data, stop + 1, end)
    if position >= end or data[position] != _COLON:
        return -1, -1, False
    position = after_space(data, position + 1, end)
    return position if position < end else -1, stop, escaped


@borrowing
def after_container(data: Octets, position: int, end: int) -> int:
    """The position after the object or array at `position`, all of it checked; −1: broken or very deep."""
    levels = 1
    objects = np.uint64(data[position] == OPEN_OBJECT)  # a bit for each level: set for an object
    position += 1
    fresh = True
    while levels > 0:
        in_object = objects & np.uint64(1) == np.uint64(1)
        found, position = next_member(data, position, end, CLOSE_OBJECT if in_object else CLOSE_ARRAY, fresh)
        if found == FAULT:
            return -1
        if found == CLOSED:
            levels -= 1
            objects >>= np.uint64(1)
            fresh = False
            continue
        if in_object:
            position, _, _ = read_key(data, position, end)
            if position < 0:
                return -1
        fresh = data[position] == OPEN_OBJECT or data[position] == OPEN_ARRAY
        if fresh:
            if levels == _MAX_SKIPPED_LEVELS:
                return -1
            levels += 1
            objects = objects << np.uint64(1) | np.uint64(data[position] == OPEN_OBJECT)
            position += 1
        else:
            _, _, _, position = scalar(data, position, end)
            if position < 0:
                return -1
    return position
