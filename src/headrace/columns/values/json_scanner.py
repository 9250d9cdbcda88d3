"""JSON values into tokens: one compiled pass over all values, led by their shape, as strict as RFC 8259.

Each value is checked from its first byte to its last. What the pass cannot decide (anything that is not JSON,
a field that comes twice, a name with escapes, a value of the wrong form) it marks as doubtful, leaves without
tokens, and continues: a bad value does not affect the others.

Each step takes the position where it starts and the end of the value, and never reads beyond that end. A step
that finds something other than JSON returns a position of −1 or the kind BROKEN; the reference parser then
finds the reason, so these steps carry no messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.columns.values.tokens import (
    ARRAY,
    BROKEN,
    CHILDREN,
    ESCAPED,
    FALSE,
    FIRST_CHILD,
    FORM,
    FRACTION,
    INTEGER,
    ITEMS,
    LEAF,
    LIST,
    MISSING,
    NAME_SIZE,
    NAME_START,
    NULL,
    OBJECT,
    SPACE,
    STRING,
    STRUCT,
    TEXT,
    TRUE,
    Scan,
)
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace.columns.values.tokens import Flags, Places, ScanArrays, Shape
    from headrace.protocol.kernels import Octets

    Numbers: TypeAlias = NDArray[np.int64]


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
        # No overlong form, and no surrogate.
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
    """The position after the escape whose backslash is at `position`, or −1 if it is not valid."""
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
    """The position of the next byte that is not a decimal digit."""
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
    """The next element of a container that ends with `closing`: CLOSED, MEMBER or FAULT, and its position.

    `fresh` means that the container was just opened, so that no comma precedes its first member.
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


_GOOD: Final = 0
_DOUBTFUL: Final = 1
_FULL: Final = 2

_NODE: Final = 0
_ENTRY: Final = 1
_HINT: Final = 2  # the field that probably comes next: producers keep their order

_SPARE: Final = 16


class JsonScanner:
    """Scans values of one shape; keeps the number of items of lists and maps to allocate enough at once."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._items_per_row = np.full(shape.spaces, 2.0)
        self._items_per_row[0] = 1.0

    def scan(self, data: Octets, offsets: Places, present: Flags) -> Scan:
        """The tokens of the values that lie between `offsets` in `data`; those not `present` are null."""
        while True:
            scan = Scan.blank(self._shape, data, self._capacities(len(data), len(present)))
            frames = np.empty((3, self._shape.depth), np.int64)
            full = _scan_values(scan.arrays, offsets, present, frames, np.zeros_like(scan.arrays.counts))
            if full < 0:
                return scan
            self._items_per_row[full] *= 2

    def _capacities(self, data_bytes: int, rows: int) -> Numbers:
        """The capacity of each space; an item and its comma are two bytes, so it is bounded."""
        capacities: Numbers = (
            np.minimum(self._items_per_row * rows, data_bytes // 2).astype(np.int64) + _SPARE
        )
        capacities[0] = rows
        return capacities


@borrowing
def _scan_values(arrays: ScanArrays, offsets: Places, present: Flags, frames: Numbers, saved: Numbers) -> int:
    """Scan all values. Returns −1, or the space of items whose capacity was too small."""
    counts = arrays.counts
    for row in range(len(present)):
        arrays.rows[row] = row
        counts[0] = row + 1
        if not present[row]:
            continue
        _copy(counts, saved)
        verdict, space = _scan_value(arrays, int(offsets[row]), int(offsets[row + 1]), row, frames)
        if verdict == _FULL:
            return space
        if verdict == _DOUBTFUL:
            arrays.doubtful[row] = 1
            saved[0] = row
            _forget(arrays.table, arrays.bases, saved, counts, arrays.kinds)
            _copy(saved, counts)
    return -1


@borrowing
def _copy(source: Numbers, target: Numbers) -> None:
    """Copy the counts of all spaces but the first."""
    for space in range(1, len(source)):
        target[space] = source[space]


@borrowing
def _forget(table: Numbers, bases: Numbers, saved: Numbers, counts: Numbers, kinds: Flags) -> None:
    """Remove the tokens of a value that is doubtful."""
    for node in range(table.shape[1]):
        space = table[SPACE, node]
        for entry in range(saved[space], counts[space]):
            kinds[bases[node] + entry] = MISSING


@borrowing
def _scan_value(  # noqa: C901, PLR0911, PLR0912, PLR0915 (one loop: parts would have to pass all arrays)
    arrays: ScanArrays, position: int, end: int, row: int, frames: Numbers
) -> tuple[int, int]:
    """Scan one value; what became of it, and the space that is full."""
    data, table, names, bases, row_bases, counts, kinds, starts, stops, rows, _ = arrays
    position = after_space(data, position, end)
    if position >= end or data[position] != OPEN_OBJECT:
        return _DOUBTFUL, 0
    kinds[bases[0] + row] = OBJECT
    position += 1
    fresh = True
    depth = 0
    frames[_NODE, 0], frames[_ENTRY, 0], frames[_HINT, 0] = 0, row, 0
    while depth >= 0:
        node = frames[_NODE, depth]
        form = table[FORM, node]
        found, position = next_member(
            data, position, end, CLOSE_ARRAY if form == LIST else CLOSE_OBJECT, fresh
        )
        if found == FAULT:
            return _DOUBTFUL, 0
        fresh = False
        if found == CLOSED:
            if form != STRUCT:
                stops[bases[node] + frames[_ENTRY, depth]] = counts[table[ITEMS, node]]
            depth -= 1
            continue
        child = table[FIRST_CHILD, node]
        entry = frames[_ENTRY, depth]
        if form != STRUCT:
            space = table[ITEMS, node]
            entry = counts[space]
            if entry >= row_bases[space + 1] - row_bases[space]:
                return _FULL, space
            rows[row_bases[space] + entry] = row
            counts[space] = entry + 1
        if form != LIST:
            start = position + 1
            position, stop, escaped = read_key(data, position, end)
            if position < 0:
                return _DOUBTFUL, 0
            if form == STRUCT:
                child = _field(data, start, stop, table, names, node, frames[_HINT, depth])
                if child >= 0:
                    frames[_HINT, depth] = child - table[FIRST_CHILD, node] + 1
                # A name with escapes may be that of a field; a field that has a token already comes twice.
                if escaped or (child >= 0 and kinds[bases[child] + entry] != MISSING):
                    return _DOUBTFUL, 0
            else:
                token = bases[child] + entry
                kinds[token] = ESCAPED if escaped else STRING
                starts[token], stops[token] = start, stop
                child += 1
        byte = data[position]
        if byte in (OPEN_OBJECT, OPEN_ARRAY):
            kind = OBJECT if byte == OPEN_OBJECT else ARRAY
            if child >= 0 and table[FORM, child] != LEAF:
                if (table[FORM, child] == LIST) != (kind == ARRAY):
                    return _DOUBTFUL, 0
                kinds[bases[child] + entry] = kind
                starts[bases[child] + entry] = counts[table[ITEMS, child]]
                position += 1
                fresh = True
                depth += 1
                frames[_NODE, depth], frames[_ENTRY, depth], frames[_HINT, depth] = child, entry, 0
                continue
            start = position
            position = stop = after_container(data, position, end)
        else:
            kind, start, stop, position = scalar(data, position, end)
        if position < 0 or kind == BROKEN:
            return _DOUBTFUL, 0
        if child >= 0:
            if (kind > NULL and table[FORM, child] != LEAF) or (kind >= OBJECT and not table[TEXT, child]):
                return _DOUBTFUL, 0
            token = bases[child] + entry
            kinds[token] = kind
            starts[token], stops[token] = start, stop
    return (_GOOD if after_space(data, position, end) == end else _DOUBTFUL), 0


@borrowing
def _field(data: Octets, start: int, stop: int, table: Numbers, names: Octets, node: int, hint: int) -> int:
    """The child of `node` that has the name between `start` and `stop`, or −1."""
    first, children = table[FIRST_CHILD, node], table[CHILDREN, node]
    size = stop - start
    for step in range(children):
        child = first + (hint + step) % children
        if table[NAME_SIZE, child] == size:
            name = table[NAME_START, child]
            index = 0
            while index < size and data[start + index] == names[name + index]:
                index += 1
            if index == size:
                return int(child)
    return -1
