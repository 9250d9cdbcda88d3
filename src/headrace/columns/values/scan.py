"""The tokens of whole columns of values, as scanners leave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.columns.values.shape import SPACE
from headrace.columns.values.tokens import Tokens

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace.columns.values.shape import Shape
    from headrace.columns.values.tokens import Flags, Places
    from headrace.protocol.kernels import Octets

    Numbers: TypeAlias = NDArray[np.int64]


class Room(NamedTuple):
    """Everything that a compiled scanner reads and writes beside the values.

    The tokens of a node follow each other from `bases[node]`; entry number n of a space belongs to the value
    `rows[row_bases[space] + n]`; `counts` says how many entries each space has.
    """

    data: Octets
    table: Numbers
    names: Octets
    bases: Numbers
    row_bases: Numbers
    counts: Numbers
    kinds: Flags
    starts: Places
    stops: Places
    rows: Places
    doubtful: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The tokens of all nodes of a shape."""

    shape: Shape
    room: Room

    @classmethod
    def blank(cls, shape: Shape, data: Octets, capacities: Numbers) -> Scan:
        """A scan with room for as many entries in each space, and without any token yet."""
        sizes = capacities[shape.table[SPACE]]
        total = int(sizes.sum())
        room = Room(
            data=data,
            table=shape.table,
            names=shape.names,
            bases=np.concatenate([[0], sizes.cumsum()]),
            row_bases=np.concatenate([[0], capacities.cumsum()]),
            counts=np.zeros(shape.spaces, np.int64),
            kinds=np.zeros(total, np.uint8),
            starts=np.empty(total, np.int32),
            stops=np.empty(total, np.int32),
            rows=np.empty(int(capacities.sum()), np.int32),
            doubtful=np.zeros(int(capacities[0]), np.uint8),
        )
        return cls(shape=shape, room=room)

    @property
    def doubtful(self) -> Flags:
        """1 for each value that neither the scanner nor a converter vouches for."""
        return self.room.doubtful

    def tokens(self, node: int) -> Tokens:
        """The tokens of `node`."""
        room, space = self.room, self.shape.space(node)
        count = int(room.counts[space])
        base, row_base = int(room.bases[node]), int(room.row_bases[space])
        here, owners = slice(base, base + count), slice(row_base, row_base + count)
        return Tokens(
            room.data, room.kinds[here], room.starts[here], room.stops[here], room.rows[owners], room.doubtful
        )
