"""What people see of state: the operators of a job with figures, and the rows of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.joining import ID, MATCHED
from headrace.columns.key_hash import row_hashes
from headrace.errors import Misuse, did_you_mean
from headrace.state.files import BadState
from headrace.state.groups import DUE, EXPIRES, HASH, RUNS, GroupStore
from headrace.state.indexed import IDENTITY, TABLE_ROWS, VIEW_ROWS, all_rows
from headrace.state.joins import INNER, ROWS
from headrace.state.operators import manifests, operator_locations, partition_files, read_operator
from headrace.state.runs import NEVER, ORDER, Run, numbers
from headrace.state.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.state.files import StateFiles
    from headrace.state.groups import Numbers
    from headrace.state.versions import Manifest

PARTITION: Final = "state_partition"
SIDE: Final = "state_side"
DUE_AT: Final = "state_due"
EXPIRES_AT: Final = "state_expires"
TIME: Final = pa.timestamp("us", "UTC")
_OWN: Final = (HASH, DUE, EXPIRES, ORDER, ID, MATCHED, IDENTITY)
"""The columns of the store itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorState:
    """The state of an operator after a batch."""

    operator: str
    """The name of its folder."""
    description: str
    keys: tuple[str, ...]
    partitions: int
    batch: int
    """The batch that the figures belong to."""
    batches: tuple[int, ...]
    """The batches whose state can be read."""
    rows: int
    byte_size: int
    runs: int
    late: int
    """The rows that came too late in that batch."""
    state_ms: float
    """The time that the slowest partition took to read and write state in that batch."""


def list_operators(state: str, batch: int | None = None) -> list[OperatorState]:
    """The operators of a job, which keep their state in the folder `state`, after a batch or the last one."""
    return [_operator_state(location, batch) for location in operator_locations(state)]


def find_operator(state: str, name: str | None) -> str:
    """The location of an operator's state by its name; None is the only operator."""
    known = {location.rpartition("/")[2]: location for location in operator_locations(state)}
    shown = f"It has {', '.join(known)}." if known else "It has none that keep state."
    if name is None:
        if len(known) != 1:
            raise Misuse(f"the job has {len(known)} operators that keep state: name one. {shown}")
        return next(iter(known.values()))
    if name not in known:
        raise Misuse(f"the job has no operator {name!r}.{did_you_mean(name, known)} {shown}")
    return known[name]


def complete_batches(location: str) -> list[int]:
    """The batches that all partitions of an operator have a version of, oldest first."""
    versions = [set(Versions(files).numbers()) for files in partition_files(location)]
    return sorted(set.intersection(*versions)) if versions else []


def checked_batch(location: str, batch: int | None) -> int:
    """The batch to read: the last complete one if none is asked for."""
    known = complete_batches(location)
    if not known:
        raise BadState.missing(f"{location}/0")
    if batch is not None and batch not in known:
        raise Misuse(
            f"the state after batch {batch} is not there: that of the batches "
            f"{', '.join(map(str, known))} is, for a repetition of the last batch."
        )
    return known[-1] if batch is None else batch


def _operator_state(location: str, batch: int | None) -> OperatorState:
    manifest = read_operator(location)
    assert manifest is not None, "the location was found by its manifest"
    number = checked_batch(location, batch)
    found = list(manifests(location, number))
    return OperatorState(
        operator=location.rpartition("/")[2],
        description=manifest.outline,
        keys=manifest.keys,
        partitions=len(found),
        batch=number,
        batches=tuple(complete_batches(location)),
        rows=sum(each.rows for each in found),
        byte_size=sum(each.byte_size for each in found),
        runs=sum(len(each.names) for each in found),
        late=sum(each.late for each in found),
        state_ms=max(each.state_ms for each in found),
    )


def read_rows(
    location: str, *, batch: int, key: Mapping[str, str] | None = None, partition: int | None = None
) -> Iterator[pa.Table]:
    """The rows of an operator's state after a batch, some at a time.

    `key` are values of columns as text: only rows with all of them are read. A `partition` alone can be read.
    The columns `PARTITION` and, of a join or a view, `SIDE`, or else `DUE_AT` and `EXPIRES_AT` come first.
    """
    operator = read_operator(location)
    assert operator is not None, "the location was found by its manifest"
    for files in partition_files(location):
        number = int(str(files).rpartition("/")[2])
        if partition not in (None, number):
            continue
        versions = Versions(files)
        manifest = versions.read(batch)
        if RUNS in manifest.runs:
            parts = _group_rows(versions, manifest, operator.keys, key or {})
        elif TABLE_ROWS in manifest.runs:
            parts = _view_rows(files, manifest)
        else:
            parts = _join_rows(files, manifest)
        for rows in parts:
            chosen = _with_key(rows, key or {})
            yield chosen.add_column(0, PARTITION, pa.array(np.full(chosen.num_rows, number, np.int32)))


def _group_rows(
    versions: Versions, manifest: Manifest, keys: tuple[str, ...], key: Mapping[str, str]
) -> Iterator[pa.Table]:
    schema = _columns(Run(versions.files, info, INNER) for info in manifest.runs[RUNS])
    store = GroupStore(versions, manifest, lambda part: _filled(part, schema))
    hashes = _hashes_of(schema, keys, key, manifest)
    parts = (
        store.all_rows(manifest.watermark_us)
        if hashes is None
        else store.rows_of(hashes, manifest.watermark_us)
    )
    for rows in parts:
        shown = rows.drop_columns([HASH, DUE, EXPIRES])
        shown = shown.add_column(0, EXPIRES_AT, _time(numbers(rows[EXPIRES])))
        yield shown.add_column(0, DUE_AT, _time(numbers(rows[DUE])))


def _filled(part: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        part[field.name] if field.name in part.column_names else pa.nulls(part.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _hashes_of(
    schema: pa.Schema, keys: tuple[str, ...], key: Mapping[str, str], manifest: Manifest
) -> Numbers | None:
    """The hash of a key, if all of it is given: then no other rows need to be read."""
    if not keys or set(keys) - set(key) or set(keys) - set(schema.names):
        return None
    try:
        row = pa.table({name: pa.array([key[name]]).cast(schema.field(name).type) for name in keys})
    except pa.ArrowInvalid:
        return None
    return row_hashes(row, keys, manifest.seed_words)


def _join_rows(files: StateFiles, manifest: Manifest) -> Iterator[pa.Table]:
    """The rows of both sides, each with nulls for the columns of the other."""
    runs = [(side, Run(files, info, INNER)) for side in ROWS for info in manifest.runs.get(side, ())]
    schema = _columns(run for _, run in runs)
    for side, run in runs:
        for chunk in run.chunks():
            rows = _filled(pa.Table.from_batches([chunk.batch]), schema)
            yield rows.add_column(0, SIDE, pa.array([side] * rows.num_rows, pa.string()))


def _view_rows(files: StateFiles, manifest: Manifest) -> Iterator[pa.Table]:
    """The rows of a table, and those that it is joined to, each with nulls for the columns of the other."""
    infos = {name: manifest.runs.get(name, ()) for name in (TABLE_ROWS, VIEW_ROWS)}
    schema = _columns(Run(files, info, INNER) for each in infos.values() for info in each)
    for name, runs in infos.items():
        for part in all_rows(files, runs):
            rows = _filled(part, schema)
            yield rows.add_column(0, SIDE, pa.array([name] * rows.num_rows, pa.string()))


def _columns(runs: Iterable[Run]) -> pa.Schema:
    """All columns of the operator that runs have: some may have been added later."""
    columns: dict[str, pa.DataType] = {}
    for run in runs:
        columns |= {field.name: field.type for field in run.chunk(0).batch.schema}
    return pa.schema([(name, kind) for name, kind in columns.items() if name not in _OWN])


def _with_key(rows: pa.Table, key: Mapping[str, str]) -> pa.Table:
    for name, text in key.items():
        if name not in rows.column_names:
            shown = [column for column in rows.column_names if column not in (DUE_AT, EXPIRES_AT, SIDE)]
            raise Misuse(
                f"the state has no column {name!r}.{did_you_mean(name, shown)} It has {', '.join(shown)}."
            )
        column = rows[name]
        try:
            wanted = pa.array([text]).cast(column.type)[0]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Misuse(f"{text!r} is no value of the column {name!r}, which has {column.type}.") from None
        rows = rows.filter(pc.fill_null(pc.equal(column, wanted), False))
    return rows


def _time(times_us: Numbers) -> pa.Array:
    return pa.array(times_us, mask=times_us == NEVER).cast(TIME)
