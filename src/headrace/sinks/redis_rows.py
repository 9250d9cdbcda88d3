"""Rows as commands for Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.errors import Refused
from headrace.sinks.redis_commands import (
    add_members,
    delete_keys,
    remove_members,
    write_hashes,
    write_strings,
)
from headrace.sinks.redis_parts import joined
from headrace.sinks.rows import json_documents, last_of_each_key
from headrace.sinks.sink import DELETED
from headrace.sinks.template import Template, Unfit, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.sinks.redis_commands import Member

Kind = Literal["hash", "string", "zset"]
KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCommands:
    """What rows mean to Redis; of several rows with one key, or one member, the last one counts."""

    key: Template
    kind: Kind
    fields: tuple[str, ...]
    score: str
    member: Template | None
    expire_ms: int

    def of(self, rows: pa.Table) -> list[bytes]:
        """The commands that apply the rows; `Refused` where rows cannot be applied."""
        if not len(rows):
            return []
        deleted = rows[DELETED].to_pylist() if DELETED in rows.column_names else [False] * len(rows)
        if self.member is not None:
            return self._sorted_sets(rows, self.member, deleted)
        keys = _texts(self.key, rows)
        last = last_of_each_key(pa.table({KEY: keys}), [KEY])
        is_gone = pa.array(deleted, pa.bool_()).fill_null(False).take(last)
        gone, kept = last.filter(is_gone), last.filter(pc.invert(is_gone))
        columns = self.fields or tuple(name for name in rows.column_names if name != DELETED)
        write = self._strings if self.kind == "string" else self._hashes
        return [
            *delete_keys(keys.take(gone).to_pylist()),
            *write(keys.take(kept), rows.select(list(columns)).take(kept)),
        ]

    def sets(self, rows: pa.Table) -> dict[int, str]:
        """The sorted set of each row, where rows go to sorted sets."""
        return {} if self.member is None else dict(enumerate(_texts(self.key, rows).to_pylist()))

    def _hashes(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        fields = {name: _values(rows[name]) for name in rows.column_names}
        return write_hashes(keys, fields, self.expire_ms)

    def _strings(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        documents = pa.array(json_documents(rows), pa.large_string(), size=len(rows))
        return write_strings(keys, documents, self.expire_ms)

    def _sorted_sets(self, rows: pa.Table, member: Template, deleted: list[bool]) -> list[bytes]:
        names = zip(_texts(self.key, rows).to_pylist(), _texts(member, rows).to_pylist(), strict=True)
        last = {name: index for index, name in enumerate(names)}
        values = rows[self.score].to_pylist()
        kept: dict[Member, int] = {name: index for name, index in last.items() if not deleted[index]}
        refused = {
            index: f"{self.score} is {values[index]}, which is no score"
            for index in kept.values()
            if not _is_score(values[index])
        }
        if refused:
            raise Refused(refused)
        gone = remove_members(name for name in last if name not in kept)
        return [*gone, *add_members({name: float(values[at]) for name, at in kept.items()}, self.expire_ms)]


def _texts(template: Template, rows: pa.Table) -> pa.Array:
    """The text of each row; those of which none can be made are refused."""
    names = list(template.columns)
    if template.parts and names and not any(rows[name].null_count for name in names):
        # What most templates are: Arrow puts the texts together.
        return joined([piece for text, name in template.parts for piece in (text, *_column(rows, name))])
    texts, refused = [], {}
    documents = rows.select(names).to_pylist() if names else [{}] * len(rows)
    for index, row in enumerate(documents):
        try:
            texts.append(template.text_of(row, complete=True))
        except Unfit as unfit:
            refused[index] = str(unfit)
    if refused:
        raise Refused(refused)
    return pa.array(texts, pa.large_string())


def _column(rows: pa.Table, name: str | None) -> list[pa.Array]:
    return [] if name is None else [_values(rows[name])]


def _values(column: pa.ChunkedArray) -> pa.Array:
    """The values as texts; those of most types by Arrow."""
    if len(column) == 0:
        return pa.array([], pa.large_string())
    if (
        pa.types.is_string(column.type)
        or pa.types.is_integer(column.type)
        or pa.types.is_boolean(column.type)
    ):
        return pa.concat_arrays(column.cast(pa.large_string()).chunks)
    values = column.to_pylist(maps_as_pydicts="lossy")
    as_text = _number if pa.types.is_floating(column.type) else text_of
    texts = [None if value is None else as_text(value) for value in values]
    return pa.array(texts, pa.large_string())


def _number(value: float) -> str:
    """A number as JSON has it, which Arrow writes otherwise: 1.0, not 1."""
    return repr(value) if math.isfinite(value) else text_of(value)


def _is_score(value: Any) -> bool:
    """Whether it is a number; NaN, which no number equals, is none."""
    try:
        return bool(float(value) == float(value))
    except (TypeError, ValueError):
        return False
