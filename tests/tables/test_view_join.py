"""Views over tables against dicts: every change on every side, any batches, restarts and repeats."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.tables import copy as copying
from headrace.tables.changes import Changes, Positions, VersionMaker, joined_changes
from headrace.tables.copy import TableCopyLost
from headrace.tables.view_join import JoinedRows, ViewJoin, ViewShape
from headrace.tables.view_table import Step, ViewTable, WholeRows
from tests.tables.models import RECORDS
from tests.tables.view_reference import Hop, Row, Said, Tables, apply, differences, whole_view

LONG, TEXT = pa.int64(), pa.string()


def table(topic: str, **columns: pa.DataType) -> WholeRows:
    row_type = pa.struct([("id", LONG), *columns.items()])
    return WholeRows(topic=topic, row_type=row_type, key=("id",), keep_us=0)


EMPLOYEES = table("employees", name=TEXT, dept=LONG, boss=LONG)
DEPARTMENTS = table("departments", title=TEXT, place=LONG)
PLACES = table("places", city=TEXT)
TABLES = {each.topic: each for each in (EMPLOYEES, DEPARTMENTS, PLACES)}


def joined(definition: WholeRows, parent: int, column: str, how: str) -> JoinedRows:
    return JoinedRows(definition=definition, parent=parent, foreign_key=(column,), is_inner=how == "inner")


@dataclass
class Topics:
    """The topics as lists, and where the next batch begins in them."""

    said: dict[str, list[Said]] = field(default_factory=lambda: {topic: [] for topic in TABLES})

    def append(self, records: Sequence[Said]) -> None:
        for record in records:
            self.said[record.topic].append(record)

    def ends(self) -> dict[str, Positions]:
        return {topic: {0: len(records)} for topic, records in self.said.items()}

    def read(self, definition: WholeRows, start: Positions, end: Positions) -> Changes:
        maker = VersionMaker(definition)
        rows = [self._record(definition.topic, offset) for offset in range(start.get(0, 0), end[0])]
        changes = maker.changes(pa.RecordBatch.from_pylist(rows, schema=RECORDS), 0)
        return joined_changes([changes], maker.schema)

    def _record(self, topic: str, offset: int) -> Row:
        _, key, row = self.said[topic][offset]
        value = None if row is None else json.dumps(row).encode()
        # Clocks go backwards; what comes later in the log counts all the same.
        return {"key": str(key).encode(), "value": value, "offset": offset, "timestamp": 1_000 - offset}


class Bench:
    """A view over topics in a folder."""

    def __init__(self, folder: Path, shape: ViewShape, topics: Topics) -> None:
        self._folder, self._shape, self._topics = folder, shape, topics
        self.restart()

    def restart(self) -> None:
        self._tables = {
            topic: ViewTable(self._folder / topic, each, partial(self._topics.read, each))
            for topic, each in TABLES.items()
        }

    def changes(self, batch: int, start: dict[str, Positions], end: dict[str, Positions]) -> list[Row]:
        for topic, each in self._tables.items():
            each.advance(Step(batch=batch, start=start[topic] if batch else None, end=end[topic]))
        join = ViewJoin(self._shape, [self._tables[each.topic] for each in self._shape.tables])
        columns, is_gone = join.images().changes()
        names = [*self.names(), "_deleted"]
        rows = pa.Table.from_arrays([*columns, pa.array(is_gone)], names=names)
        listed: list[Row] = rows.to_pylist()
        return listed

    def names(self) -> list[str]:
        return [name if not number else SHOWN[number][name] for number, name in self._shape.columns]


SHOWN: dict[int, dict[str, str]] = {
    1: {"title": "title", "place": "place"},
    2: {"city": "city"},
    3: {"name": "boss_name", "dept": "boss_dept", "boss": "boss_boss"},
}


def view(hows: Sequence[Any]) -> tuple[ViewShape, list[Hop]]:
    """Employees with their departments, the places of these, and their bosses."""
    shape = ViewShape(
        first=EMPLOYEES,
        joined=(
            joined(DEPARTMENTS, 0, "dept", hows[0]),
            joined(PLACES, 1, "place", hows[1]),
            joined(EMPLOYEES, 0, "boss", hows[2]),
        ),
    )
    hops = [
        Hop("dept", "departments", SHOWN[1], hows[0]),
        Hop("place", "places", SHOWN[2], hows[1]),
        Hop("boss", "employees", SHOWN[3], hows[2]),
    ]
    return shape, hops


keys = st.integers(0, 3)
foreign = st.one_of(st.none(), st.integers(0, 4))
texts = st.sampled_from(["a", "b"])


def records(topic: str, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Said]:
    def said(key: int, row: Row | None) -> Said:
        return Said(topic, key, None if row is None else {"id": key} | row)

    return st.builds(said, keys, st.one_of(st.none(), *[st.fixed_dictionaries(columns)] * 3))


said = st.one_of(
    records("employees", name=texts, dept=foreign, boss=foreign),
    records("departments", title=texts, place=foreign),
    records("places", city=texts),
)
events = st.sampled_from(["go on", "restart", "repeat", "crash and repeat"])
batches = st.lists(st.tuples(st.lists(said, min_size=1, max_size=6), events), min_size=3, max_size=6)
ALL_LINKED = [
    *(Said("employees", n, {"id": n, "name": "a", "dept": n, "boss": (n + 1) % 4}) for n in range(4)),
    *(Said("departments", n, {"id": n, "title": "a", "place": n // 2}) for n in range(4)),
    *(Said("places", n, {"id": n, "city": "a"}) for n in range(4)),
]
"""The first batch, in which every row points to others: nearly each change behind it reaches some."""
hows = st.tuples(*[st.sampled_from(["left", "inner"])] * 3)


@pytest.mark.parametrize("fold_at", [1, 4, 10_000])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=batches, hows=hows)
def test_a_view_changes_as_if_it_was_made_anew_after_each_batch(
    fold_at: int, steps: list[Any], hows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HOT_ROWS", fold_at)
    shutil.rmtree(tmp_path / "view", ignore_errors=True)
    (shape, hops), topics = view(hows), Topics()
    bench = Bench(tmp_path / "view", shape, topics)
    tables: Tables = {topic: {} for topic in TABLES}
    before: dict[int, Row] = {}
    for batch, (added, event) in enumerate([(ALL_LINKED, "go on"), *steps]):
        start = topics.ends()
        topics.append(added)
        apply(tables, added)
        after = whole_view(tables, "employees", hops)
        if event == "restart":
            bench.restart()
        if event == "crash and repeat":
            bench.changes(batch, start, topics.ends())
            bench.restart()
        assert bench.changes(batch, start, topics.ends()) == differences(before, after)
        if event == "repeat":
            assert bench.changes(batch, start, topics.ends()) == differences(before, after)
        before = after


def employee(key: int, name: str, dept: int | None) -> Said:
    return Said("employees", key, {"id": key, "name": name, "dept": dept, "boss": None})


def department(key: int, title: str, place: int | None = None) -> Said:
    return Said("departments", key, {"id": key, "title": title, "place": place})


def place(key: int, city: str) -> Said:
    return Said("places", key, {"id": key, "city": city})


def test_a_change_reaches_the_rows_that_point_to_it_and_no_others(tmp_path: Path) -> None:
    topics = Topics()
    bench = Bench(tmp_path, view(["inner", "left", "left"])[0], topics)
    people = [employee(1, "Alice", 1), employee(2, "Bob", 2), employee(3, "Eve", None)]
    expected = [
        ([*people, department(1, "HR"), department(2, "IT")], [("Alice", "HR", False), ("Bob", "IT", False)]),
        ([department(1, "People")], [("Alice", "People", False)]),
        ([employee(2, "Bob", 1)], [("Bob", "People", False)]),
        ([Said("departments", 2, None)], []),
        ([Said("departments", 1, None)], [("Alice", "People", True), ("Bob", "People", True)]),
    ]
    for batch, (added, changes) in enumerate(expected):
        start = topics.ends()
        topics.append(added)
        rows = bench.changes(batch, start, topics.ends())
        assert [(row["name"], row["title"], row["_deleted"]) for row in rows] == changes


def test_a_change_is_handed_on_by_rows_that_it_does_not_change_themselves(tmp_path: Path) -> None:
    """A place is in the rows of those whose department is there."""
    topics = Topics()
    bench = Bench(tmp_path, view(["left", "left", "left"])[0], topics)
    people = [employee(1, "Alice", 1), employee(2, "Bob", 2)]
    expected = [
        ([*people, department(1, "HR", 7), department(2, "IT", 8)], [("Alice", None), ("Bob", None)]),
        ([place(7, "Rome")], [("Alice", "Rome")]),
        ([place(8, "Oslo")], [("Bob", "Oslo")]),
        ([department(2, "IT", 7), Said("places", 8, None)], [("Bob", "Rome")]),
        ([place(7, "Roma")], [("Alice", "Roma"), ("Bob", "Roma")]),
    ]
    for batch, (added, changes) in enumerate(expected):
        start = topics.ends()
        topics.append(added)
        rows = bench.changes(batch, start, topics.ends())
        assert [(row["name"], row["city"]) for row in rows] == changes


def test_a_view_whose_files_are_lost_is_refused_because_it_cannot_know_what_to_delete(tmp_path: Path) -> None:
    topics = Topics()
    bench = Bench(tmp_path, view(["left", "left", "left"])[0], topics)
    start = topics.ends()
    topics.append([employee(1, "Alice", None)])
    assert [row["name"] for row in bench.changes(0, start, topics.ends())] == ["Alice"]
    shutil.rmtree(tmp_path)
    bench.restart()
    start = topics.ends()
    topics.append([Said("employees", 1, None)])
    with pytest.raises(TableCopyLost, match=r"table of 'employees' is not the one .*headrace job reset"):
        bench.changes(1, start, topics.ends())


def test_a_batch_without_changes_changes_nothing(tmp_path: Path) -> None:
    topics = Topics()
    bench = Bench(tmp_path, view(["inner", "left", "left"])[0], topics)
    assert bench.changes(0, topics.ends(), topics.ends()) == []
    assert bench.changes(1, topics.ends(), topics.ends()) == []
