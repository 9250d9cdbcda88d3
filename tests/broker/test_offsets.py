"""Committed offsets: kept, forgotten, and held back by transactions."""

from __future__ import annotations

import pytest

from headrace.broker.groups import GroupSettings
from headrace.broker.groups.records import CommittedOffset
from headrace.broker.offsets import CommittedOffsets
from headrace.broker.state_log import MemoryStateLog, Producer
from headrace.protocol.wire import run_steps
from headrace.storage.errors import DiskError
from tests.broker.virtual_clock import VirtualClock

PRODUCER = Producer(7, 0)
OTHER = Producer(8, 0)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset)


@pytest.fixture
def log() -> MemoryStateLog:
    return MemoryStateLog()


@pytest.fixture
def offsets(log) -> CommittedOffsets:
    return CommittedOffsets(log, VirtualClock(), GroupSettings())


def reloaded(log: MemoryStateLog) -> CommittedOffsets:
    offsets = CommittedOffsets(log, VirtualClock(), GroupSettings())
    offsets.load()
    return offsets


def committed(offsets: CommittedOffsets, partition: int = 0) -> int | None:
    found = offsets.get("g", "t", partition)
    return None if found is None else found.offset


def end(log: MemoryStateLog, offsets: CommittedOffsets, producer: Producer, *, is_commit: bool) -> None:
    log.mark(producer, committed=is_commit)
    offsets.complete(producer.producer_id, committed=is_commit)


def test_the_last_commit_counts(offsets, log):
    offsets.commit("g", {("t", 0): at(1), ("t", 1): at(5)})
    offsets.commit("g", {("t", 0): at(2)})
    for place in (offsets, reloaded(log)):
        assert (committed(place), committed(place, 1)) == (2, 5)


def test_epoch_note_and_time_are_kept(offsets, log):
    whole = CommittedOffset(offset=3, leader_epoch=4, metadata="note", committed_at_ms=99)
    offsets.commit("g", {("t", 0): whole})
    assert offsets.get("g", "t", 0) == reloaded(log).get("g", "t", 0) == whole


def test_groups_do_not_see_each_others_offsets(offsets):
    offsets.commit("g", {("t", 0): at(1)})
    assert offsets.get("h", "t", 0) is None
    assert offsets.of_group("h") == {}
    assert offsets.of_group("g") == {("t", 0): at(1)}


def test_a_deleted_offset_is_gone(offsets, log):
    offsets.commit("g", {("t", 0): at(1), ("t", 1): at(1)})
    offsets.delete("g", [("t", 0), ("t", 9)])
    for place in (offsets, reloaded(log)):
        assert place.of_group("g") == {("t", 1): at(1)}


def test_deleting_what_is_not_there_writes_nothing(offsets, log):
    offsets.delete("g", [("t", 0)])
    assert log.entries == []


def test_a_deleted_topic_takes_its_offsets_along(offsets, log):
    offsets.commit("g", {("t", 0): at(1), ("u", 0): at(2)})
    offsets.commit("h", {("t", 3): at(1)})
    offsets.add_pending(PRODUCER, "h", {("t", 4): at(1)})
    run_steps(offsets.delete_topic_steps("t"))
    for place in (offsets, reloaded(log)):
        assert place.of_group("g") == {("u", 0): at(2)}
        assert place.of_group("h") == {}
        assert not place.is_pending("h", "t", 4)


def test_an_offset_that_the_log_refuses_does_not_count(offsets, log, monkeypatch):
    offsets.commit("g", {("t", 0): at(1)})

    def refuse(*_: object) -> None:
        raise DiskError("no space left: free some, and try again")

    monkeypatch.setattr(log, "append", refuse)
    with pytest.raises(DiskError):
        offsets.commit("g", {("t", 0): at(2)})
    assert committed(offsets) == 1


@pytest.mark.parametrize(("length", "is_accepted"), [(0, True), (4_096, True), (4_097, False)])
def test_a_note_may_have_4096_characters(offsets, length, is_accepted):
    assert offsets.accepts_metadata("é" * length) is is_accepted


def test_no_note_is_fine(offsets):
    assert offsets.accepts_metadata(None)


def test_offsets_of_a_transaction_count_when_it_commits(offsets, log):
    offsets.commit("g", {("t", 0): at(1)})
    offsets.add_pending(PRODUCER, "g", {("t", 0): at(2)})
    for place in (offsets, reloaded(log)):
        assert committed(place) == 1
        assert place.is_pending("g", "t", 0)
    end(log, offsets, PRODUCER, is_commit=True)
    for place in (offsets, reloaded(log)):
        assert committed(place) == 2
        assert not place.is_pending("g", "t", 0)


def test_offsets_of_a_transaction_that_aborts_never_count(offsets, log):
    offsets.add_pending(PRODUCER, "g", {("t", 0): at(2)})
    end(log, offsets, PRODUCER, is_commit=False)
    for place in (offsets, reloaded(log)):
        assert committed(place) is None
        assert not place.is_pending("g", "t", 0)


def test_the_end_of_one_transaction_leaves_others_open(offsets, log):
    offsets.add_pending(PRODUCER, "g", {("t", 0): at(2)})
    offsets.add_pending(OTHER, "g", {("t", 1): at(3)})
    end(log, offsets, PRODUCER, is_commit=True)
    for place in (offsets, reloaded(log)):
        assert (committed(place), committed(place, 1)) == (2, None)
        assert place.has_pending("g")


def test_a_plain_commit_after_a_pending_one_is_not_undone_by_it(offsets, log):
    offsets.add_pending(PRODUCER, "g", {("t", 0): at(2)})
    offsets.commit("g", {("t", 0): at(9)})
    end(log, offsets, PRODUCER, is_commit=True)
    for place in (offsets, reloaded(log)):
        assert committed(place) == 9


def test_deleting_an_offset_also_drops_what_a_transaction_holds(offsets, log):
    offsets.add_pending(PRODUCER, "g", {("t", 0): at(2)})
    offsets.delete("g", [("t", 0)])
    end(log, offsets, PRODUCER, is_commit=True)
    for place in (offsets, reloaded(log)):
        assert committed(place) is None


def test_a_transaction_without_offsets_ends_without_a_trace(offsets):
    offsets.complete(99, committed=True)
    assert offsets.group_ids() == set()


def test_groups_that_have_only_pending_offsets_are_known(offsets):
    offsets.commit("g", {("t", 0): at(1)})
    offsets.add_pending(PRODUCER, "h", {("t", 0): at(2)})
    assert offsets.group_ids() == {"g", "h"}
