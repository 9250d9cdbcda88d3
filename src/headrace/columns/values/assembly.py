"""Tokens assembled into one Arrow column; the reference parser reads the values that are doubtful."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.buffers import valid_bits
from headrace.columns.values.scalars import booleans, decimals, doubles, integers
from headrace.columns.values.text import binaries, strings
from headrace.columns.values.times import dates, timestamps
from headrace.columns.values.tokens import LIST, MAP, STRUCT, BadValue, Parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.columns.values.times import TimeRules
    from headrace.columns.values.tokens import Scan, Tokens


_NUMERIC: Final = ((pt.is_integer, integers), (pt.is_floating, doubles), (pt.is_decimal, decimals))
_PLAIN: Final = (
    (pt.is_string, strings),
    (pt.is_date, dates),
    (pt.is_boolean, booleans),
    (pt.is_binary, binaries),
)


def assemble(scan: Scan, rules: TimeRules) -> pa.Array:
    """The values of a scan; those that are doubtful afterwards have no meaning."""
    return _node(scan, 0, rules)


def _leaf(tokens: Tokens, type_: pa.DataType, rules: TimeRules) -> pa.Array:
    """Tokens as a column of a type that has no parts."""
    if pt.is_timestamp(type_):
        return timestamps(tokens, type_, rules)
    for matches, convert in _NUMERIC:
        if matches(type_):
            return convert(tokens, type_)
    return next(convert(tokens) for matches, convert in _PLAIN if matches(type_))


def _node(scan: Scan, node: int, rules: TimeRules) -> pa.Array:
    type_, form = scan.shape.types[node], scan.shape.form(node)
    tokens = scan.tokens(node)
    if form not in {STRUCT, LIST, MAP}:
        return _leaf(tokens, type_, rules)
    children = [_node(scan, child, rules) for child in scan.shape.children(node)]
    present = tokens.present
    if form == STRUCT:
        return pa.Array.from_buffers(type_, len(present), [valid_bits(present)], children=children)
    if form == MAP:
        entries = pa.struct([type_.key_field, type_.item_field])
        children = [pa.Array.from_buffers(entries, len(children[0]), [None], children=children)]
    buffers = [valid_bits(present), pa.py_buffer(_list_offsets(tokens))]
    return pa.Array.from_buffers(type_, len(present), buffers, children=children)


def _list_offsets(tokens: Tokens) -> np.typing.NDArray[np.int32]:
    """Where the items of each list start; a null list has none."""
    sizes = np.where(tokens.present, tokens.stops - tokens.starts, 0)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


class Reference(Protocol):
    """Reads one value at a time."""

    def read(self, value: bytes) -> Any:
        """The value as Python objects for Arrow; raises `BadValue`."""
        ...


class ReferenceValue(NamedTuple):
    """The result of the reference parser: a value, or the reason why it cannot be read."""

    value: Any
    error: str | None


def finish(scan: Scan, values: pa.BinaryArray, rules: TimeRules, reference: Reference) -> Parsed:
    """The column of a scan of `values`; `reference` reads the doubtful ones."""
    parsed = assemble(scan, rules)
    doubtful = np.flatnonzero(scan.doubtful)
    if not len(doubtful):
        return Parsed(parsed, None)
    again = values.take(pa.array(doubtful)).to_pylist()
    return with_results(parsed, doubtful, [read_by_reference(reference, value) for value in again])


def read_by_reference(reference: Reference, value: bytes) -> ReferenceValue:
    """The result of `reference` for `value`."""
    try:
        return ReferenceValue(reference.read(value), None)
    except BadValue as error:
        return ReferenceValue(None, str(error))


def with_results(values: pa.Array, rows: NDArray[np.int64], results: Sequence[ReferenceValue]) -> Parsed:
    """`values` with the results of the reference parser in their `rows`."""
    good = [number for number, result in enumerate(results) if result.error is None]
    second = pa.array([results[number].value for number in good] + [None], values.type)
    # The null at the end is for all values that cannot be read.
    places = np.arange(len(values))
    places[rows] = len(values) + len(good)
    places[rows[good]] = len(values) + np.arange(len(good))
    merged = pc.take(pa.concat_arrays([values, second]), pa.array(places))
    return Parsed(merged, _errors(len(values), rows, results) if len(good) < len(results) else None)


def with_reasons(parsed: Parsed, reasons: Mapping[int, str]) -> Parsed:
    """The parsed values, with errors instead of the values in the rows of `reasons`."""
    count = len(parsed.values)
    rows = np.fromiter(sorted(reasons), np.int64, len(reasons))
    bad = np.zeros(count, np.bool_)
    bad[rows] = True
    errors = [None] * count if parsed.errors is None else parsed.errors.to_pylist()
    for row, reason in reasons.items():
        errors[row] = errors[row] or reason
    values = pc.take(parsed.values, pa.array(np.arange(count), mask=bad))
    return Parsed(values, pa.array(errors, pa.string()))


def _errors(count: int, rows: NDArray[np.int64], results: Sequence[ReferenceValue]) -> pa.StringArray:
    """The errors of the results in their rows, and null in all others."""
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(results))
    elsewhere = np.ones(count, np.bool_)
    elsewhere[rows] = False
    errors = pa.array([result.error for result in results], pa.string())
    return pc.take(errors, pa.array(places, mask=elsewhere))
