"""Deliveries: patient, exact, and honest about what was not taken."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import sqlite
from headrace.folders import LocalFolder
from headrace.sinks.delivery import DeliveryStopped, SinkDelivery, backoff_s, read_generation
from headrace.sinks.sink import RowsRejected, SinkContext, SinkWriter, TargetUnavailable
from headrace.sinks.staging import StagedBatch

Contexts = Callable[..., SinkContext]
ROWS = pa.table({"id": [1, 2, 3, 4], "name": ["tea", "cup", "pot", "mug"]})
BATCH = StagedBatch.of(ROWS)


class Shelf:
    """A target in memory, and the sink that opens it; `faults` are what happens at the next calls."""

    name = "shelf"
    max_attempts = 2

    def __init__(self, *faults: Exception | None) -> None:
        self.batches: dict[int, list[int]] = {}
        self.faults = list(faults)
        self.opened = 0

    def open(self, context: SinkContext) -> SinkWriter:
        self.opened += 1
        return self

    def last_batch(self) -> int | None:
        return max(self.batches, default=None)

    def commit(self, batch: int, staged: StagedBatch) -> None:
        ids = [number for chunk in staged for number in chunk.read()["id"].to_pylist()]
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Lost):
            self.batches[batch] = ids
        if fault is not None:
            raise fault
        assert batch not in self.batches
        self.batches[batch] = ids

    def close(self) -> None:
        pass


class Lost(TargetUnavailable):
    """The answer to a write that was done is lost."""


def delivery(
    sink: Shelf, context: SinkContext, statuses: list[str] | None = None, *, stop_after: int = 99
) -> SinkDelivery:
    waits = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > stop_after

    return SinkDelivery(
        sink, context, on_status=(statuses if statuses is not None else []).append, wait=pause
    )


def test_an_unavailable_target_is_retried_and_the_reason_is_reported(context: Contexts) -> None:
    statuses: list[str] = []
    shelf = Shelf(TargetUnavailable("connection refused."), TargetUnavailable("shelf: still away"))
    assert delivery(shelf, context(ROWS), statuses).deliver(0, BATCH) == []
    assert shelf.batches == {0: [1, 2, 3, 4]}
    assert shelf.opened == 3
    assert statuses[0].startswith("shelf: connection refused; retrying in ")
    assert statuses[1].startswith("shelf: still away; retrying in ")
    assert statuses[2] == ""


def test_a_write_whose_response_was_lost_is_not_repeated(context: Contexts) -> None:
    shelf = Shelf(Lost("the connection broke"))
    delivery(shelf, context(ROWS)).deliver(5, BATCH)
    assert shelf.batches == {5: [1, 2, 3, 4]}


def test_a_stop_request_ends_the_wait_for_a_target(context: Contexts) -> None:
    shelf = Shelf(*[TargetUnavailable("away")] * 5)
    with pytest.raises(DeliveryStopped, match="while it waited for shelf"):
        delivery(shelf, context(ROWS), stop_after=2).deliver(0, BATCH)
    assert len(shelf.faults) == 2


def test_rejected_rows_become_dead_letters_and_the_others_are_written(context: Contexts) -> None:
    shelf = Shelf(
        RowsRejected({1: "too big", 3: "too small"}), TargetUnavailable("away"), RowsRejected({0: "too late"})
    )
    letters = delivery(shelf, context(ROWS)).deliver(0, BATCH)
    assert shelf.batches == {0: [3]}
    assert [(letter.reason, letter.value) for letter in letters] == [
        ("too late", '{"id": 1, "name": "tea"}'),
        ("too big", '{"id": 2, "name": "cup"}'),
        ("too small", '{"id": 4, "name": "mug"}'),
    ]
    assert pa.ipc.open_stream(letters[1].row).read_all() == ROWS.slice(1, 1)


def test_retryable_rows_are_retried_up_to_max_attempts(context: Contexts) -> None:
    later = RowsRejected({1: "no such product"}, retryable=True)
    shelf = Shelf(later)
    assert delivery(shelf, context(ROWS)).deliver(0, BATCH) == []
    shelf = Shelf(later, later)
    assert [letter.reason for letter in delivery(shelf, context(ROWS)).deliver(0, BATCH)] == [
        "no such product"
    ]
    assert shelf.batches == {0: [1, 3, 4]}


def test_rejected_rows_survive_a_crash_between_target_and_log(context: Contexts) -> None:
    shelf = Shelf(RowsRejected({2: "too big"}))
    letters = delivery(shelf, context(ROWS)).deliver(8, BATCH)
    assert delivery(shelf, context(ROWS)).deliver(8, BATCH) == letters
    assert delivery(shelf, context(ROWS)).deliver(9, BATCH) == []


def test_rejected_rows_of_a_crashed_attempt_are_discarded_when_the_rows_are_accepted(
    context: Contexts,
) -> None:
    shelf = Shelf(RowsRejected({2: "too big"}), OSError("a crash"))
    with pytest.raises(OSError, match="a crash"):
        delivery(shelf, context(ROWS)).deliver(8, BATCH)
    assert delivery(shelf, context(ROWS)).deliver(8, BATCH) == []
    assert delivery(shelf, context(ROWS)).deliver(8, BATCH) == []
    assert shelf.batches == {8: [1, 2, 3, 4]}


def test_rejected_rows_survive_a_lost_connection(context: Contexts) -> None:
    shelf = Shelf(RowsRejected({2: "too big"}), TargetUnavailable("away"), Lost("the connection broke"))
    assert [letter.reason for letter in delivery(shelf, context(ROWS)).deliver(8, BATCH)] == ["too big"]
    assert [letter.reason for letter in delivery(shelf, context(ROWS)).deliver(8, BATCH)] == ["too big"]


def test_an_empty_batch_does_not_connect_to_the_target(context: Contexts) -> None:
    shelf = Shelf()
    assert delivery(shelf, context(ROWS)).deliver(0, StagedBatch.of(ROWS.slice(0, 0))) == []
    assert (shelf.opened, shelf.batches) == (0, {})


def test_the_backoff_grows_up_to_a_limit() -> None:
    random.seed(1)
    waits = [backoff_s(number) for number in range(12)]
    assert waits[0] <= 0.5
    assert all(0.6 * 30 < seconds <= 30 for seconds in waits[7:])


def test_a_generation_is_stable_and_the_next_one_is_higher(tmp_path: Path) -> None:
    outputs = [LocalFolder(tmp_path / f"outputs-{number}") for number in (1, 2)]
    first = read_generation(outputs[0])
    assert read_generation(outputs[0]) == first
    assert read_generation(outputs[1]) >= first > 1_700_000_000_000


def test_a_file_that_another_process_locks_is_unavailable(
    context: Contexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sinks.sqlite.LOCK_TIMEOUT_S", 0.01)
    file = tmp_path / "shop.db"
    statuses: list[str] = []
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("BEGIN IMMEDIATE")

    def pause(_: float) -> bool:
        other.execute("COMMIT")
        return False

    SinkDelivery(
        sqlite("shelf", key="id", file=file), context(ROWS), on_status=statuses.append, wait=pause
    ).deliver(0, BATCH)
    assert statuses[0].startswith("sqlite shelf: database is locked; retrying in ")
    assert other.execute("SELECT id, name FROM shelf").fetchall()[3] == (4, "mug")
    other.close()
