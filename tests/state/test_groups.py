"""State by key against a dictionary: whatever is replaced, due, merged, repeated, retried or lost."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state import runs, versions
from headrace.state.files import BadState, LocalStateFiles
from headrace.state.groups import Groups, GroupStore, group_rows
from headrace.state.runs import NEVER
from headrace.state.versions import BatchFigures, Versions
from tests.state.memory_files import MemoryStateFiles

FIGURES = BatchFigures(deadline_rule="", late=0, started_s=0.0)
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string())])


@dataclass(frozen=True)
class Group:
    """What a batch makes of a group: its values, and its times after the watermark of the batch."""

    values: list[str]
    due_in: int | None
    lasts: int


GROUPS = st.builds(
    Group,
    values=st.lists(st.text("abc", max_size=3), max_size=3),
    due_in=st.none() | st.integers(1, 6),
    lasts=st.integers(1, 9),
)


@dataclass(frozen=True)
class Step:
    """A batch: the groups that it changes, their new states, and how far the watermark moves."""

    groups: dict[int, Group]
    woken: Group
    """What becomes of groups that are due."""
    moves: int
    runs_twice: bool


STEPS = st.lists(
    st.builds(
        Step,
        groups=st.dictionaries(st.integers(-6, 6), GROUPS, max_size=5),
        woken=GROUPS,
        moves=st.integers(0, 3),
        runs_twice=st.booleans(),
    ),
    max_size=25,
)


@dataclass
class Model:
    """The same state as a dictionary: (values, due, expires) by hash."""

    groups: dict[int, tuple[list[str], int, int]] = field(default_factory=dict)

    def found(self, touched: set[int], until: int, expired: int) -> dict[int, list[str]]:
        return {
            key: values
            for key, (values, due, expires) in self.groups.items()
            if (key in touched or due <= until) and expires > expired
        }


def table(groups: dict[int, Group], now: int) -> pa.Table:
    rows = [(key, value, group) for key, group in groups.items() for value in group.values]
    made = pa.table(
        {"key": [key for key, _, _ in rows], "value": [value for _, value, _ in rows]}, schema=SCHEMA
    )
    due = np.array([NEVER if g.due_in is None else now + g.due_in for *_, g in rows], np.int64)
    expires = np.array([now + g.lasts for *_, g in rows], np.int64)
    return group_rows(made, np.array([key for key, _, _ in rows], np.int64), due, expires, after_us=now)


def rows_of(found: Groups) -> dict[int, list[str]]:
    made: dict[int, list[str]] = {}
    for row in [] if found.rows is None else found.rows.to_pylist():
        made.setdefault(row["key"], []).append(row["value"])
    return made


def opened(place: Path | MemoryStateFiles, version: int) -> GroupStore:
    read = Versions(LocalStateFiles(place) if isinstance(place, Path) else place)
    return GroupStore(read, read.read(version - 1), lambda part: part)


@given(steps=STEPS)
@settings(max_examples=80, deadline=None)
def test_a_store_finds_what_a_dictionary_finds(steps: list[Step]) -> None:
    files, model, late = MemoryStateFiles(), Model(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "FAN", 2)
        patch.setattr(versions, "SMALLEST", 2)
        patch.setattr(runs, "CHUNK_ROWS", 3)
        for version, step in enumerate(steps):
            now = late + step.moves
            for _ in range(1 + step.runs_twice):
                store = opened(files, version)
                touched = np.array(sorted(step.groups), np.int64)
                found = store.look_up(touched, until_us=now, expired_us=late)
                expected = model.found(set(step.groups), now, late)
                assert rows_of(found) == expected
                groups = {**dict.fromkeys(expected, step.woken), **step.groups}
                manifest = store.replace(
                    found, table(groups, now), version=version, watermark_us=now, figures=FIGURES
                )
            for key, group in groups.items():
                model.groups.pop(key, None)
                if group.values:
                    due = NEVER if group.due_in is None else now + group.due_in
                    model.groups[key] = (
                        group.values,
                        due,
                        max(now + group.lasts, due if due < NEVER else 0),
                    )
            late = now
            alive = {key: group for key, group in model.groups.items() if group[2] > now}
            everything = [
                row for rows in opened(files, version + 1).all_rows(now) for row in rows.to_pylist()
            ]
            assert sorted((row["key"], row["value"]) for row in everything) == sorted(
                (key, value) for key, (values, _, _) in alive.items() for value in values
            )
            assert manifest.rows >= len(everything)  # what has expired is counted until it is dropped
            assert manifest.rows <= sum(len(values) for values, _, _ in model.groups.values())


@given(steps=STEPS, where=st.integers(0, 10**6), cut=st.floats(0, 0.999))
@settings(max_examples=30, deadline=None)
def test_a_missing_or_torn_file_is_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], where: int, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("state")
    for version, step in enumerate([*steps, *steps[:1]]):
        store = opened(folder, version)
        found = store.look_up(np.array(sorted(step.groups), np.int64), until_us=version, expired_us=version)
        groups = {**dict.fromkeys(found.hashes.tolist(), step.woken), **step.groups}
        store.replace(found, table(groups, version), version=version, watermark_us=version, figures=FIGURES)
    version = len([*steps, *steps[:1]])
    if not version:
        return
    named = sorted({f"{version - 1}.json", *opened(folder, version).before.names})
    name = named[where % len(named)]
    path = folder / name
    content = path.read_bytes()
    for damaged in (None, content[: int(cut * len(content))], content[:-9] + bytes(9)):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(BadState, match=name):
            opened(folder, version)
    path.write_bytes(content)
    opened(folder, version)


def test_only_what_a_repetition_needs_is_kept(tmp_path: Path) -> None:
    group = Group(["a"], None, 100)
    for version in range(30):
        store = opened(tmp_path, version)
        hashes = np.array([version], np.int64)
        found = store.look_up(hashes, until_us=0, expired_us=0)
        store.replace(found, table({version: group}, 0), version=version, watermark_us=0, figures=FIGURES)
    manifests = [Versions(LocalStateFiles(tmp_path)).read(version) for version in (28, 29)]
    names = {"28.json", "29.json"}.union(*(manifest.names for manifest in manifests))
    assert {path.name for path in tmp_path.iterdir()} == names
    assert manifests[-1].rows == 30
    assert len(manifests[-1].names) <= versions.FAN


def test_a_batch_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(LocalStateFiles):
        def sync(self, name: str) -> None:
            raise OSError("no space left")

    files = Versions(Failing(tmp_path))
    store = GroupStore(files, files.read(-1), lambda part: part)
    monkeypatch.setattr(runs, "SYNCED_BYTES", 0)
    found = store.look_up(np.array([1], np.int64), until_us=0, expired_us=0)
    rows = table({1: Group(["a"], None, 9)}, 0)
    with pytest.raises(OSError, match="no space"):
        store.replace(found, rows, version=0, watermark_us=0, figures=FIGURES)
    assert opened(tmp_path, 0).look_up(np.array([1], np.int64), until_us=0, expired_us=0).rows is None
    assert Versions(LocalStateFiles(tmp_path)).numbers() == []


def test_keys_with_one_hash_are_one_group(tmp_path: Path) -> None:
    rows = pa.table({"key": [1, 2], "value": ["a", "b"]}, schema=SCHEMA)
    both = np.array([7, 7], np.int64)
    store = opened(tmp_path, 0)
    found = store.look_up(np.array([7], np.int64), until_us=0, expired_us=0)
    never = np.full(2, NEVER)
    groups = group_rows(rows, both, never, np.array([5, 9]), after_us=0)
    store.replace(found, groups, version=0, watermark_us=0, figures=FIGURES)
    found = opened(tmp_path, 1).look_up(np.array([7], np.int64), until_us=0, expired_us=8)
    assert found.rows is not None
    assert found.rows.to_pylist() == rows.to_pylist()


def test_a_store_with_other_deadlines_is_written_again(tmp_path: Path) -> None:
    store = opened(tmp_path, 0)
    found = store.look_up(np.array([1, 2], np.int64), until_us=0, expired_us=0)
    groups = table({1: Group(["a"], 50, 60), 2: Group(["b"], None, 60)}, 0)
    store.replace(found, groups, version=0, watermark_us=0, figures=FIGURES)
    store = opened(tmp_path, 1)

    def sooner(rows: pa.Table, hashes: Any) -> pa.Table:
        return group_rows(rows, hashes, np.full(len(hashes), 3), np.full(len(hashes), 9), after_us=0)

    changed = store.rewrite(sooner, 1)
    nothing = np.empty(0, np.int64)
    assert len(changed.look_up(nothing, until_us=3, expired_us=0).hashes) == 2
    assert not len(opened(tmp_path, 1).look_up(nothing, until_us=3, expired_us=0).hashes)
    changed.keep(1, 0, FIGURES)
    assert len(opened(tmp_path, 2).look_up(nothing, until_us=3, expired_us=0).hashes) == 2
    assert rows_of(opened(tmp_path, 1).look_up(np.array([1]), until_us=0, expired_us=0)) == {1: ["a"]}
