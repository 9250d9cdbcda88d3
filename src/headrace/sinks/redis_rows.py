"""Rows as commands for Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headrace.sinks.errors import Refused
from headrace.sinks.redis_commands import (
    add_members,
    delete_keys,
    remove_members,
    write_hashes,
    write_strings,
)
from headrace.sinks.rows import json_of
from headrace.sinks.sink import DELETED
from headrace.sinks.template import Template, Unfit, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.sinks.redis_commands import Member

Kind = Literal["hash", "string", "zset"]


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
        deleted = rows[DELETED].to_pylist() if DELETED in rows.column_names else [False] * len(rows)
        if self.member is not None:
            return self._sorted_sets(rows, self.member, deleted)
        last = {key: index for index, key in enumerate(_texts(self.key, rows))}
        kept = {key: index for key, index in last.items() if not deleted[index]}
        gone = delete_keys(key for key in last if key not in kept)
        columns = self.fields or tuple(name for name in rows.column_names if name != DELETED)
        write = self._strings if self.kind == "string" else self._hashes
        return [*gone, *write(rows.select(list(columns)), kept)]

    def sets(self, rows: pa.Table) -> dict[int, str]:
        """The sorted set of each row, where rows go to sorted sets."""
        return {} if self.member is None else dict(enumerate(_texts(self.key, rows)))

    def _hashes(self, rows: pa.Table, kept: Mapping[str, int]) -> list[bytes]:
        fields = [(name, _values(rows[name])) for name in rows.column_names]
        hashes = {
            key: [part for name, texts in fields for part in _pair(name, texts[index])]
            for key, index in kept.items()
        }
        return list(write_hashes(hashes, self.expire_ms))

    def _strings(self, rows: pa.Table, kept: Mapping[str, int]) -> list[bytes]:
        documents = rows.to_pylist(maps_as_pydicts="lossy")
        return list(write_strings({key: json_of(documents[at]) for key, at in kept.items()}, self.expire_ms))

    def _sorted_sets(self, rows: pa.Table, member: Template, deleted: list[bool]) -> list[bytes]:
        names = zip(_texts(self.key, rows), _texts(member, rows), strict=True)
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


def _texts(template: Template, rows: pa.Table) -> list[str]:
    """The text of each row; those of which none can be made are refused."""
    names = list(template.columns)
    if template.parts and not any(rows[name].null_count for name in names):
        return _joined(template.parts, rows)
    texts, refused = [], {}
    documents = rows.select(names).to_pylist() if names else [{}] * len(rows)
    for index, row in enumerate(documents):
        try:
            texts.append(template.text_of(row, complete=True))
        except Unfit as unfit:
            refused[index] = str(unfit)
    if refused:
        raise Refused(refused)
    return texts


def _joined(parts: tuple[tuple[str, str | None], ...], rows: pa.Table) -> list[str]:
    """The same, column by column: what most templates are, and three times as fast."""
    pieces: list[Iterable[str]] = []
    for text, name in parts:
        pieces.append(repeat(text, len(rows)))
        if name is not None:
            pieces.append(value or "" for value in _values(rows[name]))
    return ["".join(piece) for piece in zip(*pieces, strict=True)]


def _values(column: pa.ChunkedArray) -> list[str | None]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    # Most columns are of these types, and their texts are those of JSON without the way through it.
    if pa.types.is_string(column.type):
        return values
    if pa.types.is_integer(column.type):
        return [None if value is None else str(value) for value in values]
    if pa.types.is_floating(column.type):
        return [None if value is None else _number(value) for value in values]
    return [None if value is None else text_of(value) for value in values]


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else text_of(value)


def _pair(name: str, text: str | None) -> tuple[str, ...]:
    return () if text is None else (name, text)


def _is_score(value: Any) -> bool:
    """Whether it is a number; NaN, which no number equals, is none."""
    try:
        return bool(float(value) == float(value))
    except (TypeError, ValueError):
        return False
