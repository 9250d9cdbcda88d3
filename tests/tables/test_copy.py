"""The copy of a table against lists and dicts: out of order, deleted, restarted, torn, repeated."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.tables import copy as copying
from headrace.tables.copy import TableCopy, TableCopyLost
from tests.tables.models import USERS, Log, Model, Record, cities, snapshot

KEYS = range(6)
TIMES = range(0, 40, 3)

records = st.builds(
    Record,
    id=st.sampled_from(KEYS),
    city=st.one_of(st.none(), st.sampled_from(["Rome", "Oslo", "Lima"])),
    at=st.integers(0, 40),
    recorded=st.none(),
)
batches = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from(["go on", "restart", "repeat", "tear"])),
    min_size=1,
    max_size=8,
)


def agree(current: Any, model: Model) -> None:
    found = snapshot(current)
    pairs = [(key, at) for key in KEYS for at in TIMES]
    times = [at for _, at in pairs]
    assert cities(found, [key for key, _ in pairs], times) == [model.city(key, at) for key, at in pairs]
    assert cities(found, list(KEYS), None) == [model.city(key, None) for key in KEYS]


def tear_newest(folder: Path) -> None:
    """What a broken disk leaves; a crash cannot, because files are renamed when they are whole."""
    newest = max(folder.glob("*.arrow"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is not None:
        newest.write_bytes(newest.read_bytes()[:-20])


@pytest.mark.parametrize("fold_at", [1, 5, 10_000])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(log=st.lists(st.lists(records, max_size=25), min_size=2, max_size=2), steps=batches)
def test_a_copy_answers_like_lists_of_versions(
    fold_at: int, log: list[list[Record]], steps: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HOT_ROWS", fold_at)
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    source, model, end = Log(log), Model(), {0: 0, 1: 0}
    copy = TableCopy(tmp_path / "copy", USERS, source.read)
    for batch, (more, others, event) in enumerate(steps):
        if event == "tear":
            tear_newest(tmp_path / "copy")
        if event in ("tear", "restart"):
            copy = TableCopy(tmp_path / "copy", USERS, source.read)
        start, end = end, {0: min(end[0] + more, len(log[0])), 1: min(end[1] + others, len(log[1]))}
        model.see(source, start, end)
        agree(copy.advance(batch, end), model)
        if event == "repeat":
            agree(TableCopy(tmp_path / "copy", USERS, source.read).advance(batch, end), model)
            agree(copy.advance(batch, end), model)


def test_a_repeated_batch_sees_what_it_saw_before_although_the_topic_has_been_compacted(
    tmp_path: Path,
) -> None:
    log = Log([[Record(1, "Rome", 1), Record(1, "Oslo", 3)]])
    TableCopy(tmp_path, USERS, log.read).advance(0, {0: 2})
    again = TableCopy(tmp_path, USERS, log.read).advance(0, {0: 2})
    assert cities(snapshot(again), [1, 1], [2, 3]) == ["Rome", "Oslo"]
    assert log.reads == 1


def test_a_copy_of_another_definition_is_made_anew(tmp_path: Path) -> None:
    from dataclasses import replace

    log = Log([[Record(1, "Rome", 1)], []])
    TableCopy(tmp_path, USERS, log.read).advance(0, {0: 1})
    other = replace(USERS, valid_from=None)
    TableCopy(tmp_path, other, log.read).advance(1, {0: 1})
    assert log.reads == 2


def test_versions_that_were_replaced_longer_ago_than_declared_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HOT_ROWS", 1)
    moves = [Record(1, "Rome", 0), Record(1, "Oslo", 100), Record(2, None, 200), Record(1, "Lima", 5_000)]
    copy = TableCopy(tmp_path, USERS, Log([moves]).read)
    copy.advance(0, {0: 4})
    found = snapshot(copy.advance(1, {0: 4}))
    # 1,000 µs are kept: since 4,000 Oslo counted, and Lima counts now.
    assert cities(found, [1, 1, 1, 2], [50, 4_500, 5_000, 5_000]) == [None, "Oslo", "Lima", None]
    assert sum(path.name.startswith("base") for path in tmp_path.iterdir()) == 1


def test_a_time_in_the_future_does_not_make_history_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HOT_ROWS", 1)
    log = Log([[Record(1, "Rome", 0), Record(1, "Oslo", 100), Record(2, "Lima", 900_000, recorded=120)]])
    copy = TableCopy(tmp_path, USERS, log.read)
    copy.advance(0, {0: 3})
    assert cities(snapshot(copy.advance(1, {0: 3})), [1], [50]) == ["Rome"]


def test_only_the_files_of_this_batch_and_the_one_before_are_kept(tmp_path: Path) -> None:
    log = Log([[Record(1, "Rome", at) for at in range(9)]])
    copy = TableCopy(tmp_path, USERS, log.read)
    (tmp_path / "hot-3.new").write_bytes(b"half a file")
    for batch in range(9):
        copy.advance(batch, {0: batch + 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hot-7.arrow", "hot-8.arrow"]


def test_a_copy_that_was_lost_is_an_error_and_not_read_again(tmp_path: Path) -> None:
    log = Log([[Record(1, "Rome", 1)], []])
    TableCopy(tmp_path / "copy", USERS, log.read).advance(0, {0: 1})
    with pytest.raises(TableCopyLost, match="does not hold the table of 'users'"):
        TableCopy(tmp_path / "other", USERS, log.read).advance(1, {0: 1}, start={0: 1})
    TableCopy(tmp_path / "copy", USERS, log.read).advance(1, {0: 1}, start={0: 1})
    assert log.reads == 1
