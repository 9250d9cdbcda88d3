"""The type of values as a table that compiled code can follow.

Every field, list item, map key and map value is a node: a column of numbers in `table`. Nodes that occur once
for each value share one space of entries; the items of each list or map have a space of their own, for there
may be any number of them. A space is known by its number; 0 is the space of the values themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

LEAF: Final = 0
STRUCT: Final = 1
LIST: Final = 2
MAP: Final = 3

FORM: Final = 0
FIRST_CHILD: Final = 1  # children follow each other
CHILDREN: Final = 2
NAME_START: Final = 3
NAME_SIZE: Final = 4
SPACE: Final = 5  # where the entries of this node live
ITEMS: Final = 6  # the space of the items, of lists and maps
TEXT: Final = 7  # 1 where every token is welcome, as its text
_ROWS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The nodes of a type: `types[node]`, and the same in numbers."""

    types: Sequence[pa.DataType]
    table: NDArray[np.int64]
    names: Octets
    spaces: int
    depth: int

    def children(self, node: int) -> range:
        """The nodes directly below `node`."""
        first = int(self.table[FIRST_CHILD, node])
        return range(first, first + int(self.table[CHILDREN, node]))

    def space(self, node: int) -> int:
        """The space that the entries of `node` live in."""
        return int(self.table[SPACE, node])

    def form(self, node: int) -> int:
        """LEAF, STRUCT, LIST or MAP."""
        return int(self.table[FORM, node])


def shape_of(root: pa.DataType) -> Shape:
    """The shape of values of type `root`."""
    types, names, columns = [root], [b""], [_blank(root)]
    node, spaces, name_bytes = 0, 1, 0
    while node < len(types):
        column = columns[node]
        column[NAME_START], column[NAME_SIZE] = name_bytes, len(names[node])
        name_bytes += len(names[node])
        space = column[SPACE]
        if column[FORM] in {LIST, MAP}:
            space = column[ITEMS] = spaces
            spaces += 1
        below = _below(types[node])
        column[FIRST_CHILD], column[CHILDREN] = len(types), len(below)
        for name, child in below:
            types.append(child)
            names.append(name.encode())
            columns.append(_blank(child))
            columns[-1][SPACE] = space
        node += 1
    table = np.array(columns, np.int64).T.copy()
    return Shape(types=types, table=table, names=octets(b"".join(names)), spaces=spaces, depth=_depth(root))


def _blank(type_: pa.DataType) -> list[int]:
    column = [0] * _ROWS
    column[FORM] = _form(type_)
    column[TEXT] = int(pt.is_string(type_))
    return column


def _form(type_: pa.DataType) -> int:
    if pt.is_struct(type_):
        return STRUCT
    if pt.is_map(type_):
        return MAP
    return LIST if pt.is_list(type_) else LEAF


def _below(type_: pa.DataType) -> list[tuple[str, pa.DataType]]:
    form = _form(type_)
    if form == STRUCT:
        return [(field.name, field.type) for field in type_]
    if form == MAP:
        return [("", type_.key_type), ("", type_.item_type)]
    return [("", type_.value_type)] if form == LIST else []


def _depth(type_: pa.DataType) -> int:
    return 1 + max((_depth(child) for _, child in _below(type_)), default=0)
