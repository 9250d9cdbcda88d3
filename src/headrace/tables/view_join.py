"""A view over tables in one partition: what a batch of records changes in each step of the view.

```text
 employees ─▶ last row by key ─▶ − old + new ─▶ join, by dept ─▶ − old + new ─▶ join, by place ─▶ …
                                                  ▲                              ▲
 departments ── last row by key ──────────────────┘            places ───────────┘
```

Each step takes change rows and gives change rows: the rows that are gone, as they were, and the rows that are
new. A batch has at most one of each for a row of the first table, so no weights are needed. All state is in
`RowIndex`: of the first table by its key; of a join the rows before it by their foreign key, and those of the
joined table by its key.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import HeadraceError
from headrace.state.indexed import TABLE_ROWS, VIEW_ROWS, IndexColumns, RowIndex, column_keys, single
from headrace.state.versions import BatchFigures, Versions
from headrace.tables.definition import Definition
from headrace.tables.versions import stored_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.state.files import StateFiles
    from headrace.state.versions import Manifest

KEY: Final = "_headrace_key"
DELETED: Final = "_headrace_deleted"
PARTITION: Final = "_headrace_partition"
OFFSET: Final = "_headrace_offset"
RECORD: Final = (KEY, DELETED, PARTITION, OFFSET)
"""The columns of a record of a table, before those of its row: nulls where the record deletes it."""


class WholeRows(Definition):
    """A table whose rows have the columns of the key among the others."""

    @property
    def columns(self) -> tuple[pa.Field, ...]:
        """All columns of a row."""
        return tuple(self.row_type)

    @property
    def schema(self) -> pa.Schema:
        """The columns as they are kept."""
        return pa.schema([(field.name, stored_type(field.type)) for field in self.row_type])


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRows:
    """A table that a view adds to the rows of those before it."""

    definition: WholeRows
    parent: int
    """The number of the table that has the foreign key; the first one is 0."""
    foreign_key: tuple[str, ...]
    """The columns there, in the order of this table's key."""
    is_inner: bool
    """Whether a row that finds none here is left out of the view."""

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of the foreign key in the rows of a view."""
        return tuple(view_column(self.parent, name) for name in self.foreign_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """Which tables a view is made of, and how."""

    first: WholeRows
    joined: tuple[JoinedRows, ...]

    @property
    def tables(self) -> tuple[WholeRows, ...]:
        """All tables by their numbers; one may be there several times."""
        return (self.first, *(each.definition for each in self.joined))

    @property
    def columns(self) -> list[tuple[int, str]]:
        """The columns of the view: of the first table all, of the others all but the key."""
        return self.columns_before(len(self.joined) + 1)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key in the rows of a view."""
        return tuple(view_column(0, name) for name in self.first.key)

    def columns_before(self, number: int) -> list[tuple[int, str]]:
        """The columns of the view of the tables before one."""
        return [
            (each, column.name)
            for each, table in enumerate(self.tables[:number])
            for column in table.columns
            if each == 0 or column.name not in table.key
        ]

    def schema_before(self, number: int) -> pa.Schema:
        """The rows that a table is joined to."""
        return pa.schema(
            [
                (view_column(each, name), self.tables[each].schema.field(name).type)
                for each, name in self.columns_before(number)
            ]
        )

    @property
    def outline(self) -> str:
        """What says that rows of the view, made by another version of the program, are still right."""
        described = [f"{self.first.topic} {self.first.row_type} by {', '.join(self.first.key)}"]
        for each in self.joined:
            how, table = "inner" if each.is_inner else "left", each.definition
            described.append(
                f"{how} join of {table.topic} {table.row_type} by {', '.join(table.key)} "
                f"on {', '.join(each.by)}"
            )
        return "; ".join(described)


def view_column(number: int, name: str) -> str:
    """The column of a table in the rows of a view."""
    return f"{number}.{name}"


class ChangeRows(NamedTuple):
    """Rows that a batch retracts, as they were, and rows that it inserts."""

    old: pa.Table
    new: pa.Table


class TwoRows(HeadraceError):
    """A function made two rows of a view that have the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTable:
    """The last row of each key of a view's first table."""

    shape: ViewShape

    def advance(self, files: StateFiles, version: int, records: pa.Table) -> ChangeRows:
        """The changes of batch number `version`, whose state is written when this returns."""
        state = _PartitionState(files, version)
        definition = self.shape.first
        table = state.index(TABLE_ROWS, _table_index(definition))
        upserts = last_records(records)
        changes = changed_rows(definition, upserts, table.find(_keys(upserts)))
        state.write({TABLE_ROWS: (table, changes.old, changes.new)})
        names = [view_column(0, column.name) for column in definition.columns]
        return ChangeRows(*(rows.rename_columns(names) for rows in changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin:
    """The rows of a view with those of one table more."""

    shape: ViewShape
    number: int
    """That of the table; the first join is 1."""

    @property
    def joined(self) -> JoinedRows:
        """How the table is joined."""
        return self.shape.joined[self.number - 1]

    @property
    def view_index(self) -> IndexColumns:
        """The index of the rows that the table is joined to."""
        by = self.joined.by
        rows = self.shape.schema_before(self.number)
        return IndexColumns(schema=rows, by=by, identity=self.shape.key)

    def advance(self, files: StateFiles, version: int, changes: ChangeRows, records: pa.Table) -> ChangeRows:
        """The changes of batch number `version`, whose state is written when this returns."""
        state = _PartitionState(files, version)
        definition = self.joined.definition
        table, view = (
            state.index(TABLE_ROWS, _table_index(definition)),
            state.index(VIEW_ROWS, self.view_index),
        )
        upserts = last_records(records)
        foreign = [view.columns.keys(rows) for rows in changes]
        before = table.find(pc.unique(pa.concat_arrays([_keys(upserts), *foreign])))
        of_table = changed_rows(definition, upserts, before)
        old_keys, new_keys = (table.columns.keys(rows) for rows in of_table)
        same = self._unchanged(view.find(pc.unique(pa.concat_arrays([old_keys, new_keys]))), changes.old)
        is_gone = pc.is_in(table.columns.keys(before), value_set=old_keys)
        after = pa.concat_tables([before.filter(pc.invert(is_gone)), of_table.new])
        result = ChangeRows(
            self._joined(pa.concat_tables([changes.old, same]), before),
            self._joined(pa.concat_tables([changes.new, same]), after),
        )
        state.write({TABLE_ROWS: (table, *of_table), VIEW_ROWS: (view, *changes)})
        return result

    def _unchanged(self, rows: pa.Table, old: pa.Table) -> pa.Table:
        """The rows that the batch does not change themselves."""
        keys, gone = (column_keys(each, self.shape.key) for each in (rows, old))
        return rows.filter(pc.invert(pc.is_in(keys, value_set=gone)))

    def _joined(self, rows: pa.Table, table: pa.Table) -> pa.Table:
        definition = self.joined.definition
        places = pc.index_in(
            column_keys(rows, self.joined.by), value_set=column_keys(table, definition.key), skip_nulls=True
        )
        if self.joined.is_inner:
            rows, places = rows.filter(places.is_valid()), places.drop_null()
        found = table.take(places)
        for name in definition.schema.names:
            if name not in definition.key:
                rows = rows.append_column(view_column(self.number, name), found[name])
        return rows


def _table_index(definition: WholeRows) -> IndexColumns:
    return IndexColumns(schema=definition.schema, by=definition.key, identity=definition.key)


class _PartitionState:
    """The state of one step in one partition, from the version before a batch to that of the batch."""

    def __init__(self, files: StateFiles, version: int) -> None:
        self._begun = time.perf_counter()
        self._versions = Versions(files)
        self._before: Manifest = self._versions.read(version - 1)
        self._version = version

    def index(self, name: str, columns: IndexColumns) -> RowIndex:
        """The rows of one name."""
        runs = self._before.runs.get(name, ())
        return RowIndex(self._versions.files, runs, columns, self._before.seed_words)

    def write(self, changes: Mapping[str, tuple[RowIndex, pa.Table, pa.Table]]) -> None:
        """Write the version of the batch."""
        rows = self._before.rows
        runs = {}
        for name, (index, old, new) in changes.items():
            runs[name], count = index.write(old, new, self._version)
            rows += count
        figures = BatchFigures("", 0, self._begun)
        after = replace(self._before, version=self._version, runs=runs, rows=rows, **figures.noted())
        self._versions.write(after, keep=self._before.names)


def record_schema(definition: WholeRows) -> pa.Schema:
    """The records of a table that name a row."""
    own = [(KEY, pa.large_binary()), (DELETED, pa.int8()), (PARTITION, pa.int32()), (OFFSET, pa.int64())]
    return pa.schema([*own, *definition.schema])


def read_records(definition: WholeRows, versions: pa.Table) -> pa.Table:
    """Versions, as records of a topic are read, as records of a table."""
    names = ["key", "deleted", "partition", "offset", *versions.column_names[-len(definition.columns) :]]
    schema = record_schema(definition)
    return versions.select(names).rename_columns(schema.names).cast(schema)


def last_records(records: pa.Table) -> pa.Table:
    """The last record of each key: the order of the log decides, as it does for compaction."""
    codes = _keys(records).dictionary_encode().indices.to_numpy()
    order = np.lexsort([_numbers(records, OFFSET), _numbers(records, PARTITION), codes])
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = np.diff(codes[order]) != 0
    return records.take(pa.array(order[is_last]))


def changed_rows(definition: WholeRows, upserts: pa.Table, old: pa.Table) -> ChangeRows:
    """The rows of a table that its last records change; `old` has those that there are."""
    places = pc.index_in(_keys(upserts), value_set=column_keys(old, definition.key))
    is_known = places.is_valid().to_numpy(zero_copy_only=False)
    is_deleted = _numbers(upserts, DELETED) != 0
    rows = upserts.drop_columns(list(RECORD))
    both = np.flatnonzero(is_known & ~is_deleted)
    was = old.take(places.take(pa.array(both)))
    differs = rows_differ(_columns(was), _columns(rows.take(pa.array(both))))
    is_old, is_new = is_known.copy(), ~is_deleted
    is_old[both], is_new[both] = differs, differs
    return ChangeRows(old.take(places.filter(pa.array(is_old))), rows.filter(pa.array(is_new)))


def find_changes(changes: ChangeRows, key: Sequence[str]) -> tuple[pa.Table, NDArray[np.bool_]]:
    """The rows that are new, different or gone, and which are gone; `changes` has all rows of its keys."""
    old_keys, new_keys = (column_keys(rows, key) for rows in changes)
    for keys in (old_keys, new_keys):
        if len(pc.unique(keys)) < len(keys):
            raise TwoRows(
                "the function given to transform() made several rows of one row of the view, which has one "
                f"for each {', '.join(key)}. Write the view, and read its topic with another job."
            )
    places = pc.index_in(new_keys, value_set=old_keys)
    differs = places.is_null().to_numpy(zero_copy_only=False).copy()
    both = np.flatnonzero(~differs)
    was = changes.old.take(places.drop_null())
    differs[both] = rows_differ(_columns(was), _columns(changes.new.take(pa.array(both))))
    is_gone = pc.invert(pc.is_in(old_keys, value_set=new_keys))
    changed, gone = changes.new.filter(pa.array(differs)), changes.old.filter(is_gone)
    return pa.concat_tables([changed, gone]), np.arange(changed.num_rows + gone.num_rows) >= changed.num_rows


def rows_differ(one: list[pa.Array], other: list[pa.Array]) -> NDArray[np.bool_]:
    """Which rows are not the same in all columns; two nulls are the same."""
    differs: NDArray[np.bool_] = np.zeros(len(one[0]), np.bool_)
    for first, second in zip(one, other, strict=True):
        differs |= _differing(first, second)
    return differs


def _differing(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    if pt.is_nested(one.type):
        # Arrow compares no lists, maps or structs.
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((first != second for first, second in pairs), np.bool_, len(one))
    if pt.is_floating(one.type):
        # By their bits: what is not a number equals itself, and 0.0 is written otherwise than -0.0.
        bits = pa.int64() if one.type.bit_width == 64 else pa.int32()
        one, other = one.view(bits), other.view(bits)
    same = pc.if_else(one.is_null(), other.is_null(), pc.equal(one, other).fill_null(False))
    differs: NDArray[np.bool_] = pc.invert(same).to_numpy(zero_copy_only=False)
    return differs


def _columns(rows: pa.Table) -> list[pa.Array]:
    return [single(column) for column in rows.columns]


def _keys(records: pa.Table) -> pa.LargeBinaryArray:
    return single(records[KEY])


def _numbers(rows: pa.Table, name: str) -> NDArray[Any]:
    return np.asarray(single(rows[name]).to_numpy())
