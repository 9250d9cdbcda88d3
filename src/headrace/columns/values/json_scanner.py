"""JSON values into tokens: one compiled pass over all values, led by their shape.

Each value is checked from its first byte to its last. What the pass does not vouch for (anything that is not
JSON, a field that comes twice, a name with escapes, a value of the wrong form) it marks as doubtful, leaves
without tokens, and goes on: a bad value costs its neighbours nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.columns.values.json_lexer import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    CLOSED,
    FAULT,
    OPEN_ARRAY,
    OPEN_OBJECT,
    after_container,
    after_space,
    next_member,
    read_key,
    scalar,
)
from headrace.columns.values.scan import Scan
from headrace.columns.values.shape import (
    CHILDREN,
    FIRST_CHILD,
    FORM,
    ITEMS,
    LEAF,
    LIST,
    NAME_SIZE,
    NAME_START,
    SPACE,
    STRUCT,
    TEXT,
)
from headrace.columns.values.tokens import ARRAY, BROKEN, ESCAPED, MISSING, NULL, OBJECT, STRING
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace.columns.values.scan import Room
    from headrace.columns.values.shape import Shape
    from headrace.columns.values.tokens import Flags, Places
    from headrace.protocol.kernels import Octets

    Numbers: TypeAlias = NDArray[np.int64]

_GOOD: Final = 0
_DOUBTFUL: Final = 1
_FULL: Final = 2

_NODE: Final = 0
_ENTRY: Final = 1
_HINT: Final = 2  # the field that probably comes next: producers keep their order

_SPARE: Final = 16


class JsonScanner:
    """Scans values of one shape; remembers how many items lists and maps had, so as to make room at once."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._items_per_row = np.full(shape.spaces, 2.0)
        self._items_per_row[0] = 1.0

    def scan(self, data: Octets, offsets: Places, present: Flags) -> Scan:
        """The tokens of the values that lie between `offsets` in `data`; those not `present` are null."""
        while True:
            scan = Scan.blank(self._shape, data, self._capacities(len(data), len(present)))
            frames = np.empty((3, self._shape.depth), np.int64)
            full = _scan_values(scan.room, offsets, present, frames, np.zeros_like(scan.room.counts))
            if full < 0:
                return scan
            self._items_per_row[full] *= 2

    def _capacities(self, data_bytes: int, rows: int) -> Numbers:
        """How many entries each space gets; an item and its comma are two bytes, so that this has a bound."""
        capacities: Numbers = (
            np.minimum(self._items_per_row * rows, data_bytes // 2).astype(np.int64) + _SPARE
        )
        capacities[0] = rows
        return capacities


@borrowing
def _scan_values(room: Room, offsets: Places, present: Flags, frames: Numbers, saved: Numbers) -> int:
    """Scan all values; −1, or the space of items for which there is too little room."""
    counts = room.counts
    for row in range(len(present)):
        room.rows[row] = row
        counts[0] = row + 1
        if not present[row]:
            continue
        _copy(counts, saved)
        verdict, space = _scan_value(room, int(offsets[row]), int(offsets[row + 1]), row, frames)
        if verdict == _FULL:
            return space
        if verdict == _DOUBTFUL:
            room.doubtful[row] = 1
            saved[0] = row
            _forget(room.table, room.bases, saved, counts, room.kinds)
            _copy(saved, counts)
    return -1


@borrowing
def _copy(source: Numbers, target: Numbers) -> None:
    """Copy the counts of all spaces but the first."""
    for space in range(1, len(source)):
        target[space] = source[space]


@borrowing
def _forget(table: Numbers, bases: Numbers, saved: Numbers, counts: Numbers, kinds: Flags) -> None:
    """Take back the tokens of a value that turned out to be doubtful."""
    for node in range(table.shape[1]):
        space = table[SPACE, node]
        for entry in range(saved[space], counts[space]):
            kinds[bases[node] + entry] = MISSING


@borrowing
def _scan_value(  # noqa: C901, PLR0911, PLR0912, PLR0915 (one loop: parts would have to pass all of the room)
    room: Room, position: int, end: int, row: int, frames: Numbers
) -> tuple[int, int]:
    """Scan one value; what became of it, and the space that is full."""
    data, table, names, bases, row_bases, counts, kinds, starts, stops, rows, _ = room
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
                # A name with escapes may be that of a field; a field that is already there comes twice.
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
