"""Rows as commands for Redis."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.column_texts import joined, texts_of
from headrace.sinks.errors import Refused
from headrace.sinks.redis_commands import (
    add_members,
    delete_keys,
    remove_members,
    write_hashes,
    write_strings,
)
from headrace.sinks.rows import json_documents, last_of_each_key
from headrace.sinks.sink import DELETED
from headrace.sinks.template import Template, Unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.sinks.redis_commands import Member

Kind = Literal["hash", "string", "zset"]
KEY: Final = "key"
ROWS: Final = 10_000
"""Rows of which commands are made at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCommands:
    """What rows mean to Redis; of several rows with one key, or one member, the last one counts."""

    key: Template
    kind: Kind
    fields: tuple[str, ...]
    score: str
    member: Template | None
    expire_ms: int

    def of(self, rows: pa.Table) -> Iterable[bytes]:
        """The commands that apply the rows, made as they are taken; `Refused` if rows cannot be applied."""
        if not len(rows):
            return ()
        if self.member is not None:
            return self._sorted_sets(rows, self.member)
        keys = _texts(self.key, rows)
        last = last_of_each_key(pa.table({KEY: keys}), [KEY])
        is_gone = _deleted(rows).take(last)
        gone, kept = last.filter(is_gone), last.filter(pc.invert(is_gone))
        columns = self.fields or tuple(name for name in rows.column_names if name != DELETED)
        return chain(
            delete_keys(keys.take(gone).to_pylist()),
            self._writes(keys.take(kept), rows.select(list(columns)).take(kept)),
        )

    def sets(self, rows: pa.Table) -> dict[int, str]:
        """The sorted set of each row, where rows go to sorted sets."""
        return {} if self.member is None else dict(enumerate(_texts(self.key, rows).to_pylist()))

    def _writes(self, keys: pa.Array, rows: pa.Table) -> Iterator[bytes]:
        """Some rows at a time: Redis takes the ones before meanwhile."""
        write = self._strings if self.kind == "string" else self._hashes
        for start in range(0, len(rows), ROWS):
            yield from write(keys.slice(start, ROWS), rows.slice(start, ROWS))

    def _hashes(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        fields = {name: texts_of(rows[name]) for name in rows.column_names}
        return write_hashes(keys, fields, self.expire_ms)

    def _strings(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        documents = pa.array(json_documents(rows), pa.large_string(), size=len(rows))
        return write_strings(keys, documents, self.expire_ms)

    def _sorted_sets(self, rows: pa.Table, member: Template) -> Iterable[bytes]:
        names = zip(_texts(self.key, rows).to_pylist(), _texts(member, rows).to_pylist(), strict=True)
        last = {name: index for index, name in enumerate(names)}
        deleted = _deleted(rows).to_pylist()
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
        return chain(
            gone, add_members({name: float(values[at]) for name, at in kept.items()}, self.expire_ms)
        )


def _deleted(rows: pa.Table) -> pa.Array:
    """Of each row whether its key is to go."""
    if DELETED not in rows.column_names:
        return pa.repeat(pa.scalar(False), len(rows))
    return rows[DELETED].combine_chunks().fill_null(False)


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
    return [] if name is None else [texts_of(rows[name])]


def _is_score(value: Any) -> bool:
    """Whether it is a number; NaN, which no number equals, is none."""
    try:
        return bool(float(value) == float(value))
    except (TypeError, ValueError):
        return False
