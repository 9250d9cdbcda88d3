"""Views over tables against dicts: every change on every side, any batches, restarts and repeats."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.columns.key_hash import keys_of
from headrace.state.files import BadState, LocalStateFiles, StateFiles
from headrace.state.indexed import TABLE_ROWS, VIEW_ROWS, all_rows
from headrace.state.inspection import SIDE, read_rows
from headrace.state.operators import OperatorManifest, write_operator
from headrace.state.versions import Versions
from headrace.tables.changes import VersionMaker
from headrace.tables.kernels import hash_keys
from headrace.tables.view_join import (
    KEY,
    ChangeRows,
    FirstTable,
    JoinedRows,
    TableJoin,
    ViewShape,
    WholeRows,
    column_keys,
    find_changes,
    read_records,
)
from tests.tables.models import RECORDS
from tests.tables.view_reference import Hop, Row, Said, Tables, apply, differences, whole_view

LONG, TEXT = pa.int64(), pa.string()
PARTITIONS = 2
"""Of each step's state."""


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
class Bench:
    """A view in a folder; its steps exchange rows as tasks do, each row to the partition of its key."""

    folder: Path
    shape: ViewShape
    offsets: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def changes(self, batch: int, added: Sequence[Said]) -> list[Row]:
        """The changes of the view in a batch; it can be repeated until the next one."""
        records = [self.records(table, added) for table in self.shape.tables]
        first = FirstTable(shape=self.shape)
        parts = [
            first.advance(self.files(0, number), batch, part)
            for number, part in enumerate(spread(records[0], records[0][KEY].combine_chunks()))
        ]
        for number, of_table in enumerate(records[1:], 1):
            join = TableJoin(shape=self.shape, number=number)
            changes = self.exchange(parts, join.joined.by)
            tables = spread(of_table, of_table[KEY].combine_chunks())
            parts = [
                join.advance(self.files(number, place), batch, changes[place], tables[place])
                for place in range(PARTITIONS)
            ]
        (whole,) = [ChangeRows(*map(pa.concat_tables, zip(*parts, strict=True)))]
        rows, is_gone = find_changes(whole, self.shape.key)
        listed = rows.rename_columns(self.names()).append_column("_deleted", pa.array(is_gone)).to_pylist()
        return sorted(listed, key=lambda row: row["id"])

    def records(self, table: WholeRows, added: Sequence[Said]) -> pa.Table:
        """The records of a table. Clocks go backwards; what comes later in the log counts all the same."""
        said = [each for each in added if each.topic == table.topic]
        rows = [
            {
                "key": str(key).encode(),
                "value": None if row is None else json.dumps(row).encode(),
                "offset": offset,
                "timestamp": 1_000 - offset,
            }
            for offset, (_, key, row) in enumerate(said)
        ]
        changes = VersionMaker(table).changes(pa.RecordBatch.from_pylist(rows, schema=RECORDS), 0)
        return read_records(table, changes.versions)

    def exchange(self, parts: Sequence[ChangeRows], by: tuple[str, ...]) -> list[ChangeRows]:
        old, new = (pa.concat_tables(each) for each in zip(*parts, strict=True))
        both = [spread(rows, column_keys(rows, by)) for rows in (old, new)]
        return [ChangeRows(*each) for each in zip(*both, strict=True)]

    def files(self, step: int, partition: int) -> StateFiles:
        return LocalStateFiles(self.folder / str(step) / str(partition))

    def names(self) -> list[str]:
        return [name if not number else SHOWN[number][name] for number, name in self.shape.columns]


def spread(rows: pa.Table, keys: pa.LargeBinaryArray) -> list[pa.Table]:
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys_of(keys), hashes)
    return [rows.filter(pa.array(hashes % PARTITIONS == number)) for number in range(PARTITIONS)]


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
batches = st.lists(st.tuples(st.lists(said, min_size=1, max_size=6), st.booleans()), min_size=3, max_size=9)
ALL_LINKED = [
    *(Said("employees", n, {"id": n, "name": "a", "dept": n, "boss": (n + 1) % 4}) for n in range(4)),
    *(Said("departments", n, {"id": n, "title": "a", "place": n // 2}) for n in range(4)),
    *(Said("places", n, {"id": n, "city": "a"}) for n in range(4)),
]
"""The first batch, in which every row points to others: nearly each change after it reaches some."""
hows = st.tuples(*[st.sampled_from(["left", "inner"])] * 3)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=batches, hows=hows)
def test_a_view_changes_as_if_it_was_computed_again_after_each_batch(
    steps: list[Any], hows: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape, hops = view(hows)
    bench = Bench(tmp_path_factory.mktemp("view"), shape)
    tables: Tables = {topic: {} for topic in TABLES}
    before: dict[int, Row] = {}
    for batch, (added, is_repeated) in enumerate([(ALL_LINKED, False), *steps]):
        apply(tables, added)
        after = whole_view(tables, "employees", hops)
        expected = differences(before, after)
        assert bench.changes(batch, added) == expected
        if is_repeated:
            assert bench.changes(batch, added) == expected
        before = after
    kept = [row for number in range(PARTITIONS) for row in state_rows(bench, 0, number, TABLE_ROWS)]
    assert sorted(kept, key=str) == sorted(tables["employees"].values(), key=str)


def state_rows(bench: Bench, step: int, partition: int, name: str) -> list[Row]:
    """The rows in the newest state of a step."""
    versions = Versions(bench.files(step, partition))
    manifest = versions.read(versions.numbers()[-1])
    parts = all_rows(versions.files, manifest.runs[name])
    rows = [row for part in parts for row in part.to_pylist()]
    assert name == VIEW_ROWS or step or len(rows) == manifest.rows
    return rows


def employee(key: int, name: str, dept: int | None) -> Said:
    return Said("employees", key, {"id": key, "name": name, "dept": dept, "boss": None})


def department(key: int, title: str, place: int | None = None) -> Said:
    return Said("departments", key, {"id": key, "title": title, "place": place})


def place(key: int, city: str) -> Said:
    return Said("places", key, {"id": key, "city": city})


def test_a_change_reaches_the_rows_that_point_to_it_and_no_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["inner", "left", "left"])[0])
    people = [employee(1, "Alice", 1), employee(2, "Bob", 2), employee(3, "Eve", None)]
    expected = [
        ([*people, department(1, "HR"), department(2, "IT")], [("Alice", "HR", False), ("Bob", "IT", False)]),
        ([department(1, "People")], [("Alice", "People", False)]),
        ([employee(2, "Bob", 1)], [("Bob", "People", False)]),
        ([Said("departments", 2, None)], []),
        ([Said("departments", 1, None)], [("Alice", "People", True), ("Bob", "People", True)]),
    ]
    for batch, (added, changes) in enumerate(expected):
        rows = bench.changes(batch, added)
        assert [(row["name"], row["title"], row["_deleted"]) for row in rows] == changes


def test_a_change_is_handed_on_by_rows_that_it_does_not_change_themselves(tmp_path: Path) -> None:
    """A place is in the rows of those whose department is there."""
    bench = Bench(tmp_path, view(["left", "left", "left"])[0])
    people = [employee(1, "Alice", 1), employee(2, "Bob", 2)]
    expected = [
        ([*people, department(1, "HR", 7), department(2, "IT", 8)], [("Alice", None), ("Bob", None)]),
        ([place(7, "Rome")], [("Alice", "Rome")]),
        ([place(8, "Oslo")], [("Bob", "Oslo")]),
        ([department(2, "IT", 7), Said("places", 8, None)], [("Bob", "Rome")]),
        ([place(7, "Roma")], [("Alice", "Roma"), ("Bob", "Roma")]),
    ]
    for batch, (added, changes) in enumerate(expected):
        rows = bench.changes(batch, added)
        assert [(row["name"], row["city"]) for row in rows] == changes


def test_a_view_whose_files_are_lost_names_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["left", "left", "left"])[0])
    assert [row["name"] for row in bench.changes(0, [employee(1, "Alice", 7)])] == ["Alice"]
    lost = max(tmp_path.glob("1/*/*.arrow"))
    lost.unlink()
    with pytest.raises(BadState, match=rf"{lost} is missing: an earlier batch wrote it"):
        bench.changes(1, [Said("employees", 1, None)])


def test_the_state_of_a_join_can_be_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["left", "left", "left"])[0])
    bench.changes(0, [employee(1, "Alice", 1), employee(2, "Bob", 1), department(1, "HR")])
    bench.changes(1, [Said("employees", 2, None), department(1, "People")])
    location = str(tmp_path / "1")
    manifest = OperatorManifest(partitions=PARTITIONS, outline=bench.shape.outline, keys=("id",))
    write_operator(location, manifest, batch=0)
    rows = [row for part in read_rows(location, batch=1) for row in part.to_pylist()]
    assert [(row[SIDE], row["title"], row["0.name"]) for row in rows] == [
        (TABLE_ROWS, "People", None),
        (VIEW_ROWS, None, "Alice"),
    ]


def test_a_batch_without_changes_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["inner", "left", "left"])[0])
    assert bench.changes(0, []) == []
    assert bench.changes(1, []) == []


def test_a_row_that_is_written_again_as_it_was_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["inner", "left", "left"])[0])
    said = [employee(1, "Alice", 1), department(1, "HR")]
    assert len(bench.changes(0, said)) == 1
    assert bench.changes(1, said) == []


def test_one_row_of_a_thousand_with_the_same_foreign_key_writes_one_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path, view(["left", "left", "left"])[0])
    bench.changes(0, [employee(number, "a", 1) for number in range(1000)])
    assert len(bench.changes(1, [employee(7, "b", 1)])) == 1
    written = [
        run.rows
        for number in range(PARTITIONS)
        for run in Versions(bench.files(1, number)).read(1).runs[VIEW_ROWS]
        if run.name.startswith("1-")
    ]
    assert written == [1]
