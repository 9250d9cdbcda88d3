"""Deliveries: patient, exact, and honest about what was not taken."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import sqlite
from headrace.folders import LocalFolder
from headrace.sinks.delivery import Delivery, DeliveryStopped, generation_of, wait_s
from headrace.sinks.sink import Place, Refused, Target, Unavailable

Places = Callable[..., Place]
ROWS = pa.table({"id": [1, 2, 3, 4], "name": ["tea", "cup", "pot", "mug"]})


class Shelf:
    """A target in memory, and the sink that opens it; `faults` are what happens at the next calls."""

    name = "shelf"
    tries = 2

    def __init__(self, *faults: Exception | None) -> None:
        self.batches: dict[int, list[int]] = {}
        self.faults = list(faults)
        self.opened = 0

    def open(self, place: Place) -> Target:
        self.opened += 1
        return self

    def newest(self) -> int | None:
        return max(self.batches, default=None)

    def write(self, batch: int, rows: pa.Table) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Lost):
            self.batches[batch] = rows["id"].to_pylist()
        if fault is not None:
            raise fault
        assert batch not in self.batches
        self.batches[batch] = rows["id"].to_pylist()

    def close(self) -> None:
        pass


class Lost(Unavailable):
    """The answer to a write that was done is lost."""


def delivery(sink: Shelf, place: Place, told: list[str] | None = None, *, stop_after: int = 99) -> Delivery:
    waits = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > stop_after

    return Delivery(sink, place, tell=(told if told is not None else []).append, pause=pause)


def test_a_target_that_is_away_is_waited_for_and_what_holds_the_job_up_is_told(place: Places) -> None:
    told: list[str] = []
    shelf = Shelf(Unavailable("connection refused."), Unavailable("shelf: still away"))
    assert delivery(shelf, place(ROWS), told).deliver(0, ROWS) == []
    assert shelf.batches == {0: [1, 2, 3, 4]}
    assert shelf.opened == 3
    assert told[0].startswith("shelf: connection refused; next try in ")
    assert told[1].startswith("shelf: still away; next try in ")
    assert told[2] == ""


def test_a_write_whose_answer_was_lost_is_not_done_again(place: Places) -> None:
    shelf = Shelf(Lost("the connection broke"))
    delivery(shelf, place(ROWS)).deliver(5, ROWS)
    assert shelf.batches == {5: [1, 2, 3, 4]}


def test_a_job_that_is_to_stop_does_not_wait_any_longer(place: Places) -> None:
    shelf = Shelf(*[Unavailable("away")] * 5)
    with pytest.raises(DeliveryStopped, match="while it waited for shelf"):
        delivery(shelf, place(ROWS), stop_after=2).deliver(0, ROWS)
    assert len(shelf.faults) == 2


def test_rows_that_are_never_taken_are_left_out_and_become_letters(place: Places) -> None:
    shelf = Shelf(Refused({1: "too big", 3: "too small"}), Unavailable("away"), Refused({0: "too late"}))
    letters = delivery(shelf, place(ROWS)).deliver(0, ROWS)
    assert shelf.batches == {0: [3]}
    assert [(letter.reason, letter.value) for letter in letters] == [
        ("too late", '{"id": 1, "name": "tea"}'),
        ("too big", '{"id": 2, "name": "cup"}'),
        ("too small", '{"id": 4, "name": "mug"}'),
    ]
    assert pa.ipc.open_stream(letters[1].row).read_all() == ROWS.slice(1, 1)


def test_rows_that_may_be_taken_later_are_tried_as_often_as_the_sink_says(place: Places) -> None:
    later = Refused({1: "no such product"}, final=False)
    shelf = Shelf(later)
    assert delivery(shelf, place(ROWS)).deliver(0, ROWS) == []
    shelf = Shelf(later, later)
    assert [letter.reason for letter in delivery(shelf, place(ROWS)).deliver(0, ROWS)] == ["no such product"]
    assert shelf.batches == {0: [1, 3, 4]}


def test_letters_outlive_a_crash_between_the_target_and_the_log(place: Places) -> None:
    shelf = Shelf(Refused({2: "too big"}))
    letters = delivery(shelf, place(ROWS)).deliver(8, ROWS)
    assert delivery(shelf, place(ROWS)).deliver(8, ROWS) == letters
    assert delivery(shelf, place(ROWS)).deliver(9, ROWS) == []


def test_letters_of_a_try_that_a_crash_ended_are_forgotten_when_the_rows_are_taken(place: Places) -> None:
    shelf = Shelf(Refused({2: "too big"}), OSError("a crash"))
    with pytest.raises(OSError, match="a crash"):
        delivery(shelf, place(ROWS)).deliver(8, ROWS)
    assert delivery(shelf, place(ROWS)).deliver(8, ROWS) == []
    assert delivery(shelf, place(ROWS)).deliver(8, ROWS) == []
    assert shelf.batches == {8: [1, 2, 3, 4]}


def test_letters_outlive_a_connection_that_breaks_behind_them(place: Places) -> None:
    shelf = Shelf(Refused({2: "too big"}), Unavailable("away"), Lost("the connection broke"))
    assert [letter.reason for letter in delivery(shelf, place(ROWS)).deliver(8, ROWS)] == ["too big"]
    assert [letter.reason for letter in delivery(shelf, place(ROWS)).deliver(8, ROWS)] == ["too big"]


def test_a_batch_without_rows_leaves_the_target_alone(place: Places) -> None:
    shelf = Shelf()
    assert delivery(shelf, place(ROWS)).deliver(0, ROWS.slice(0, 0)) == []
    assert (shelf.opened, shelf.batches) == (0, {})


def test_waits_grow_and_have_a_limit() -> None:
    random.seed(1)
    waits = [wait_s(number) for number in range(12)]
    assert waits[0] <= 0.5
    assert all(0.6 * 30 < seconds <= 30 for seconds in waits[7:])


def test_a_series_of_batches_keeps_its_number_and_the_next_one_has_a_higher(tmp_path: Path) -> None:
    outputs = [LocalFolder(tmp_path / f"outputs-{number}") for number in (1, 2)]
    first = generation_of(outputs[0])
    assert generation_of(outputs[0]) == first
    assert generation_of(outputs[1]) >= first > 1_700_000_000_000


def test_a_file_that_another_process_writes_is_unavailable(
    place: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sinks.sqlite.PATIENCE_S", 0.01)
    file = tmp_path / "shop.db"
    told: list[str] = []
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")

    def pause(_: float) -> bool:
        other.execute("COMMIT")
        return False

    Delivery(sqlite("shelf", key="id", file=file), place(ROWS), tell=told.append, pause=pause).deliver(
        0, ROWS
    )
    assert told[0].startswith("sqlite shelf: database is locked; next try in ")
    assert other.execute("SELECT id, name FROM shelf").fetchall()[3] == (4, "mug")
    other.close()
