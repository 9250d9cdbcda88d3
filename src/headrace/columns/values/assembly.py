"""Tokens put together into one Arrow column of any type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.values.base64_tokens import binaries
from headrace.columns.values.number_tokens import booleans, decimals, doubles, integers
from headrace.columns.values.shape import LIST, MAP, STRUCT
from headrace.columns.values.text_tokens import strings
from headrace.columns.values.time_tokens import dates, timestamps
from headrace.columns.values.validity import validity

if TYPE_CHECKING:
    from headrace.columns.values.scan import Scan
    from headrace.columns.values.time_rules import TimeRules
    from headrace.columns.values.tokens import Tokens

_NUMERIC: Final = ((pt.is_integer, integers), (pt.is_floating, doubles), (pt.is_decimal, decimals))
_PLAIN: Final = (
    (pt.is_string, strings),
    (pt.is_date, dates),
    (pt.is_boolean, booleans),
    (pt.is_binary, binaries),
)


def assemble(scan: Scan, rules: TimeRules) -> pa.Array:
    """The values of a scan; where a value is doubtful after this, what stands in its place has no meaning."""
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
        return pa.Array.from_buffers(type_, len(present), [validity(present)], children=children)
    if form == MAP:
        entries = pa.struct([type_.key_field, type_.item_field])
        children = [pa.Array.from_buffers(entries, len(children[0]), [None], children=children)]
    buffers = [validity(present), pa.py_buffer(_list_offsets(tokens))]
    return pa.Array.from_buffers(type_, len(present), buffers, children=children)


def _list_offsets(tokens: Tokens) -> np.typing.NDArray[np.int32]:
    """Where the items of each list start; a list that is not there has none."""
    sizes = np.where(tokens.present, tokens.stops - tokens.starts, 0)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
