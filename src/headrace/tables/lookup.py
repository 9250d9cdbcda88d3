"""Versions looked up by key and time, in the mapped files of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.key_hash import keys_of
from headrace.errors import HeadraceError
from headrace.tables.files import read_versions
from headrace.tables.kernels import choose_newer, fill_buckets, find_versions, hash_keys
from headrace.tables.versions import SYSTEM, column_numbers, order_of, single

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.key_hash import Keys
    from headrace.tables.copy import Current
    from headrace.tables.kernels import Order

LATEST: Final = np.iinfo(np.int64).max
"""The time at which the newest version of a key counts."""
ROWS_OF_A_BUCKET: Final = 4


class TableGone(HeadraceError):
    """A file of a table's copy is not there, or cannot be read, while a batch needs it."""


class Matches(NamedTuple):
    """The rows that were found: columns as long as the question, null where there is no row."""

    columns: list[pa.Array]
    is_match: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """A file of versions, mapped, with an index by the first bits of the hash."""

    order: Order
    keys: Keys
    deleted: NDArray[np.int8]
    values: list[pa.Array]
    shift: int
    buckets: NDArray[np.int32]

    @classmethod
    def of(cls, table: pa.Table) -> Versions:
        """The versions in a sorted table."""
        order = order_of(table)
        bits = max(1, (table.num_rows // ROWS_OF_A_BUCKET).bit_length())
        buckets = np.empty((1 << bits) + 1, np.int32)
        fill_buckets(order.hashes, 64 - bits, buckets)
        return cls(
            order=order,
            keys=keys_of(single(table, "key")),
            deleted=column_numbers(table, "deleted", np.int8),
            values=[single(table, name) for name in table.column_names[len(SYSTEM) :]],
            shift=64 - bits,
            buckets=buckets,
        )

    def find(self, hashes: NDArray[np.uint64], keys: Keys, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the version of each key that counts at its time, or −1."""
        found = np.empty(len(times), np.int64)
        find_versions(
            self.order.hashes,
            self.order.valid_from,
            self.keys,
            self.buckets,
            self.shift,
            hashes,
            keys,
            times,
            found,
        )
        return found

    def drop_deleted(self, found: NDArray[np.int64]) -> None:
        """Make −1 of what was found, where it says that there is no row."""
        if self.deleted.any():
            found[(found >= 0) & (self.deleted[np.maximum(found, 0)] != 0)] = -1

    def take(self, found: NDArray[np.int64]) -> list[pa.Array]:
        """The rows at these places, null for −1."""
        places = pa.array(found, mask=found < 0)
        return [column.take(places) for column in self.values]


class TableSnapshot:
    """A table as one batch sees it."""

    def __init__(self, base: Versions | None, hot: Versions | None) -> None:
        self._base = base
        self._hot = hot

    def look_up(self, keys: pa.LargeBinaryArray, times: NDArray[np.int64] | None) -> Matches | None:
        """For each key the row that counts at its time, or without times the newest; None of an empty table.

        A null key has no row.
        """
        wanted = keys_of(keys)
        hashes = np.empty(len(keys), np.uint64)
        hash_keys(wanted, hashes)
        at = np.full(len(keys), LATEST) if times is None else np.ascontiguousarray(times)
        at.flags.writeable = (
            False  # as it is where Arrow gave it: one type, so that the loop is compiled once
        )
        parts = [part for part in (self._base, self._hot) if part is not None]
        places = [part.find(hashes, wanted, at) for part in parts]
        if len(parts) == 2:
            choose_newer(parts[0].order, parts[1].order, *places)
        for part, found in zip(parts, places, strict=True):
            part.drop_deleted(found)
            if keys.null_count:
                found[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        return _matches(parts, places)


def _matches(parts: list[Versions], places: list[NDArray[np.int64]]) -> Matches | None:
    # Most rows come from the base, and often none comes from the hot file: then there is nothing to choose.
    useful = [(part, found) for part, found in zip(parts, places, strict=True) if (found >= 0).any()]
    if not parts:
        return None
    if len(useful) < 2:
        part, found = useful[0] if useful else (parts[0], places[0])
        return Matches(part.take(found), found >= 0)
    (base, in_base), (hot, in_hot) = useful
    from_base = pa.array(in_base >= 0)
    pairs = zip(base.take(in_base), hot.take(in_hot), strict=True)
    columns = [pc.if_else(from_base, one, other) for one, other in pairs]
    return Matches(columns, (in_base >= 0) | (in_hot >= 0))


class SnapshotCache:
    """The files that a process has open, so that task after task finds them mapped."""

    def __init__(self) -> None:
        self._open: dict[Path, dict[_File, Versions]] = {}

    def snapshot(self, current: Current) -> TableSnapshot:
        """The table in these files; what the same copy had before is closed."""
        files = [None if path is None else _File.at(path) for path in (current.base, current.hot)]
        folders = {Path(file.path).parent for file in files if file is not None}
        known = {
            file: versions for folder in folders for file, versions in self._open.get(folder, {}).items()
        }
        now = {file: known.get(file) or _open(file.path) for file in files if file is not None}
        self._open |= dict.fromkeys(folders, now)
        base, hot = (None if file is None else now[file] for file in files)
        return TableSnapshot(base, hot)


class _File(NamedTuple):
    """A file by its name and its number on the disk: a batch that is repeated may write it anew."""

    path: str
    inode: int
    modified_ns: int

    @classmethod
    def at(cls, path: str) -> _File:
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            raise _gone(path) from None
        return cls(path, found.st_ino, found.st_mtime_ns)


def _open(path: str) -> Versions:
    found = read_versions(Path(path))
    if found is None:
        raise _gone(path)
    return Versions.of(found[0])


def _gone(path: str) -> TableGone:
    return TableGone(
        f"{path}, a part of a table's copy, is not there or not whole, while a batch reads it. Do not change "
        "files in a job's state folder while it runs; the copy is made anew when the job starts again."
    )
