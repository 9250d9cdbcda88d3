"""Tokens: scanners (JSON, CSV) write them, and converters read them. Also the interface of value parsers.

A token is three numbers in three arrays, never an object: its kind, and the start and stop of its text in the
bytes of all values. The tokens of a list are the first and the stop of its items instead.

The type of the values is a `Shape`, a table that compiled code can follow: each field, list item, map key and
map value is a node, a column of numbers in `table`. Nodes that occur once for each value share one space of
entries; the items of each list or map have their own space, because there can be any number of them. A space
has a number; 0 is the space of the values themselves.

A value parser reports an error with a reason for each bad value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.buffers import valid_bits
from headrace.errors import HeadraceError
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

    Flags: TypeAlias = NDArray[np.uint8]
    Places: TypeAlias = NDArray[np.int32]
    Numbers: TypeAlias = NDArray[np.int64]

_LONGEST = 300
_LONGEST_PART = 80
MISSING: Final = 0
NULL: Final = 1
STRING: Final = 2
ESCAPED: Final = 3  # a string with escapes: its text is not yet its value
INTEGER: Final = 4
FRACTION: Final = 5  # a number with a point or an exponent
TRUE: Final = 6
FALSE: Final = 7
OBJECT: Final = 8
ARRAY: Final = 9
BROKEN: Final = 10  # never stored: not a value


class UnsupportedType(HeadraceError):
    """Values of this format cannot be read as this type; the message says which part, and what to do."""


class BadValue(HeadraceError):
    """A value does not match its format and type; the message is the reason that users see."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…")


def mismatch(path: str, written: str, type_name: str) -> BadValue:
    """The error that the text at `path` is not of the expected type."""
    article = "an" if type_name[0] in "aoi" else "a"
    place = f"{shortened(path)}: " if path else ""
    return BadValue(f"{place}{shortened(written)} is not {article} {type_name}")


def shortened(text: str) -> str:
    """`text`, shortened for a message."""
    return text if len(text) <= _LONGEST_PART else text[: _LONGEST_PART - 1] + "…"


class Parsed(NamedTuple):
    """Values and errors, one of each for each parsed value.

    Where there is an error the value is null. A null without an error was null before: a tombstone.
    `errors` is None if there are no errors.
    """

    values: pa.Array
    errors: pa.StringArray | None


class ValueParser(Protocol):
    """Turns the bytes of values into a column of one type."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The values, in their order; never raises for their content."""
        ...


def decoded(value: bytes) -> str:
    """`value` as UTF-8 text; raises `BadValue`."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"not UTF-8: byte 0x{value[error.start]:02x} at byte {error.start + 1}") from None


class Tokens(NamedTuple):
    """The tokens of one field, one for each of its rows or for each item of its list.

    `rows` has the value of each token. A converter that cannot decide about a token sets the value's flag in
    `doubtful`: the reference parser then reads the whole value.
    """

    data: Octets
    kinds: Flags
    starts: Places
    stops: Places
    rows: Places
    doubtful: Flags

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each token is something other than null."""
        return self.kinds > NULL


def column(type_: pa.DataType, values: NDArray[np.generic], present: NDArray[np.bool_]) -> pa.Array:
    """A column of numbers that have the same layout in numpy and in Arrow."""
    return pa.Array.from_buffers(type_, len(present), [valid_bits(present), pa.py_buffer(values)])


class RawValues(NamedTuple):
    """The bytes of all values, the places where they start and stop, and 1 for each that is not null."""

    data: Octets
    offsets: Places
    present: Flags


def raw_values(values: pa.BinaryArray) -> RawValues:
    """The arrays behind `values`, which are not copied."""
    _, offsets, data = values.buffers()
    count = len(values)
    places = (
        np.frombuffer(offsets, np.int32, count + 1, values.offset * 4) if count else np.zeros(1, np.int32)
    )
    places.flags.writeable = False
    if values.null_count:
        present = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    else:
        present = np.ones(count, np.uint8)
    return RawValues(octets(data if data is not None else b""), places, present)


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
TEXT: Final = 7  # 1 if every token is accepted, as its text
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


class ScanArrays(NamedTuple):
    """Everything that a compiled scanner reads and writes in addition to the values.

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
    arrays: ScanArrays

    @classmethod
    def blank(cls, shape: Shape, data: Octets, capacities: Numbers) -> Scan:
        """A scan without tokens, with the given capacity of entries for each space."""
        sizes = capacities[shape.table[SPACE]]
        total = int(sizes.sum())
        arrays = ScanArrays(
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
        return cls(shape=shape, arrays=arrays)

    @property
    def doubtful(self) -> Flags:
        """1 for each value that the scanner or a converter could not decide."""
        return self.arrays.doubtful

    def tokens(self, node: int) -> Tokens:
        """The tokens of `node`."""
        arrays, space = self.arrays, self.shape.space(node)
        count = int(arrays.counts[space])
        base, row_base = int(arrays.bases[node]), int(arrays.row_bases[space])
        here, owners = slice(base, base + count), slice(row_base, row_base + count)
        return Tokens(
            arrays.data,
            arrays.kinds[here],
            arrays.starts[here],
            arrays.stops[here],
            arrays.rows[owners],
            arrays.doubtful,
        )
