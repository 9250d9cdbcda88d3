"""The files that a process keeps open: mapped once, and noticed when they are others."""

from pathlib import Path

import pytest

from headrace.tables.copy import Current, TableCopy
from headrace.tables.lookup import SnapshotCache, TableGone
from tests.tables.models import USERS, Log, Record, cities


def test_a_file_that_was_written_anew_under_its_name_is_opened_anew(tmp_path: Path) -> None:
    cache = SnapshotCache()
    for city in ("Rome", "Oslo"):
        current = TableCopy(tmp_path, USERS, Log([[Record(1, city, 1)]]).read).advance(0, {0: 1})
        assert cities(cache.snapshot(current), [1, None, 2], None) == [city, None, None]
        Path(current.hot or "").unlink()


def test_copies_of_two_jobs_do_not_close_each_other(tmp_path: Path) -> None:
    cache, log = SnapshotCache(), Log([[Record(1, "Rome", 1)]])
    one, other = (TableCopy(tmp_path / name, USERS, log.read).advance(0, {0: 1}) for name in "ab")
    first = cache.snapshot(one)
    cache.snapshot(other)
    assert cache.snapshot(one)._hot is first._hot


def test_a_file_that_is_gone_is_explained(tmp_path: Path) -> None:
    with pytest.raises(TableGone, match="a part of a table's copy, is not there"):
        SnapshotCache().snapshot(Current(hot=str(tmp_path / "hot-1.arrow")))


def test_an_empty_table_has_no_rows() -> None:
    assert cities(SnapshotCache().snapshot(Current()), [1, 2], [1, 2]) == [None, None]
