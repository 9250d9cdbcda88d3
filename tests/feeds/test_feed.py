"""Change feeds: the rows that are there, every change after them, once, across cuts, and never with a gap."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.feeds import feed as feed_module
from headrace.feeds.catalog import InvalidToken, TokenExpired, UnknownView
from headrace.feeds.feed import Change, ChangeFeed
from headrace.protocol.batch import build_batch
from headrace.protocol.records import NewRecord, encode_records
from headrace.testing import BrokerProcess
from tests.broker.wire_client import WireClient, batch_of
from tests.cli.terminal import wait_until
from tests.feeds.view_writer import Step, ViewWriter, state_after, steps_of

NewViewWriter = Callable[..., ViewWriter]
Round = tuple[list[Step], bool, int]
"""Steps of a transaction, whether it is committed, and how many changes are read then."""


def take(feed: ChangeFeed, count: int) -> list[Change]:
    with feed:
        return list(itertools.islice(feed, count))


def test_first_come_the_current_rows_and_then_each_change_as_it_is_committed(shelf: ViewWriter) -> None:
    shelf.write(("a", 1), ("b", 1), ("a", 2), ("d", 9))
    shelf.write(("d", None))
    shelf.abort(("a", 666))
    changes = iter(shelf.feed())
    rows = [next(changes), next(changes)]
    assert sorted(steps_of(rows)) == [("row", "a", 2), ("row", "b", 1)]
    shelf.abort(("b", 667))
    shelf.begin([("a", 3), ("c", 1)])
    shelf.commit()
    shelf.write(("a", None))
    later = [next(changes) for _ in range(3)]
    assert sorted(steps_of(later)) == [("delete", "a", None), ("upsert", "a", 3), ("upsert", "c", 1)]
    changes.close()  # type: ignore[attr-defined]  # a generator


def test_what_is_not_committed_is_not_there(shelf: ViewWriter) -> None:
    shelf.write(("a", 1))
    shelf.begin([("a", 2), ("b", 2)])
    assert steps_of(shelf.changes()) == [("row", "a", 1)]
    shelf.commit()
    assert state_after(shelf.changes()) == {"a": 2, "b": 2}


def test_a_view_without_rows_gives_nothing_and_then_its_first_row(shelf: ViewWriter) -> None:
    assert shelf.changes() == []
    batches = shelf.feed().batches()
    assert [next(batches) for _ in range(2)] == [[], []]
    shelf.write(("a", 1))
    assert steps_of(next(batch for batch in batches if batch)) == [("upsert", "a", 1)]


STEP = st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 99))
ROUND = st.tuples(st.lists(STEP, max_size=8), st.booleans(), st.integers(0, 6))


CUTS = given(before=st.lists(STEP, max_size=12), rounds=st.lists(ROUND, max_size=6))
FIXTURES = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@CUTS
@settings(max_examples=12, **FIXTURES)
def test_a_feed_that_is_cut_anywhere_goes_on_with_nothing_twice_and_nothing_left_out(
    new_shelf: NewViewWriter, before: list[Step], rounds: list[Round]
) -> None:
    check_cuts(new_shelf(partitions=3), before, rounds)


@pytest.mark.soak
@CUTS
@settings(max_examples=400, **FIXTURES)
def test_a_feed_that_is_cut_hundreds_of_times(
    new_shelf: NewViewWriter, before: list[Step], rounds: list[Round]
) -> None:
    check_cuts(new_shelf(partitions=3), before, rounds)


def check_cuts(shelf: ViewWriter, before: list[Step], rounds: list[Round]) -> None:
    """Read a view in pieces while it is written, and compare with what was written."""
    shelf.write(*before)
    rows, after = state({}, before), list[Step]()
    got = take(shelf.feed(follow=False), 1)
    for steps, is_committed, count in rounds:
        (shelf.write if is_committed else shelf.abort)(*steps)
        if not got:  # it never had a token: all that was written belongs to the snapshot of the next one
            rows = state(rows, steps if is_committed else [])
        else:
            after += steps if is_committed else []
        got += take(shelf.feed(since=got[-1].token if got else None, follow=False), count)
    got += shelf.changes(since=got[-1].token if got else None)
    assert {key: number for kind, key, number in steps_of(got) if kind == "row"} == rows
    assert sum(change.kind == "row" for change in got) == len(rows)
    later = [(key, number) for kind, key, number in steps_of(got) if kind != "row"]
    for partition in range(shelf.partitions):
        mine = [step for step in later if shelf.partition_of(step[0]) == partition]
        assert mine == [step for step in after if shelf.partition_of(step[0]) == partition]


def state(rows: dict[str, int], steps: list[Step]) -> dict[str, int]:
    held: dict[str, int | None] = {**rows, **dict(steps)}
    return {key: number for key, number in held.items() if number is not None}


async def test_a_feed_can_be_read_with_async_for_beside_other_tasks(shelf: ViewWriter) -> None:
    shelf.write(("a", 1), ("b", 1))
    seen: list[Change] = []

    async def read() -> None:
        async for change in shelf.feed():
            seen.append(change)  # noqa: PERF401  seen while it goes on

    readers = [asyncio.create_task(read()) for _ in range(8)]
    while len(seen) < 16:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(shelf.write, ("c", 1))
    while len(seen) < 24:
        await asyncio.sleep(0.01)
    for reader in readers:
        reader.cancel()
    ended = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    assert sorted(steps_of(seen))[16:] == [("upsert", "c", 1)] * 8


def exhaust(batches: Iterator[list[Change]]) -> None:
    for _ in batches:
        pass


def fill(shelf: ViewWriter, count: int) -> None:
    for number in range(count):
        shelf.write(("a", number), ("c", number))


def test_a_change_that_compaction_removed_after_the_token_is_an_error_and_not_a_gap(
    new_shelf: NewViewWriter,
) -> None:
    shelf = new_shelf(partitions=1, segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
    shelf.write(("a", -1), ("b", -1))
    early = shelf.changes()[0].token  # in the snapshot
    late = shelf.feed()
    batches = late.batches()
    assert next(batches)
    shelf.write(("b", -2))
    tail = next(batch for batch in batches if batch)[0].token
    fill(shelf, 60)

    def is_refused() -> bool:
        try:
            shelf.changes(since=tail)
        except TokenExpired as error:
            assert "Start again" in str(error)  # noqa: PT017
            return True
        return False

    wait_until(is_refused, "compaction")
    with pytest.raises(TokenExpired, match="no longer has all changes"):
        shelf.changes(since=early)
    with late, pytest.raises(TokenExpired):  # one that is open and was too slow
        exhaust(batches)
    assert state_after(shelf.changes()) == {"a": 59, "b": -2, "c": 59}


def test_changes_stay_for_as_long_as_the_view_keeps_them(new_shelf: NewViewWriter) -> None:
    shelf = new_shelf(
        partitions=1, segment_bytes="1024", min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="3600000"
    )
    other = new_shelf(partitions=1, segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
    shelf.write(("a", -1))
    token = shelf.changes()[0].token
    fill(shelf, 30)
    fill(other, 30)
    wait_until(lambda: len(other.feed().batches().__next__()) == 2, "a snapshot")
    assert len(shelf.changes(since=token)) == 60


def test_a_token_before_what_retention_left_is_refused(new_shelf: NewViewWriter) -> None:
    shelf = new_shelf(cleanup_policy="compact,delete")
    shelf.write(("b", 1))
    token = shelf.changes()[0].token
    shelf.write(("b", 2), ("b", 3))
    after = shelf.changes(since=token)[-1].token
    admin = AdminClient({"bootstrap.servers": shelf.bootstrap})
    (future,) = admin.delete_records([TopicPartition(shelf.name, shelf.partition_of("b"), 4)]).values()
    future.result(100)
    tail = shelf.changes(since=after)
    assert tail == []
    with pytest.raises(TokenExpired, match="no longer has all changes"):
        shelf.changes(since=token)


def test_a_token_of_a_topic_that_was_made_anew_is_refused(shelf: ViewWriter) -> None:
    shelf.write(("a", 1))
    token = shelf.changes()[0].token
    shelf.delete()
    shelf.create()
    shelf.write(("a", 2), ("b", 2))
    with pytest.raises(TokenExpired, match="recreated"):
        shelf.changes(since=token)


@pytest.mark.parametrize(
    "token", ["", "x", "é", "bm9uc2Vuc2U", "WzEsInQiLCIiLFstMV1d", "A" * 100_000, "[" * 999]
)
def test_what_is_no_token_is_explained(shelf: ViewWriter, token: str) -> None:
    with pytest.raises(InvalidToken, match="not a token"):
        shelf.changes(since=token)


def test_a_token_of_another_view_is_refused(shelf: ViewWriter, new_shelf: NewViewWriter) -> None:
    shelf.write(("a", 1))
    with pytest.raises(InvalidToken, match=f"not to '{new_shelf(name='other').name}'"):
        ChangeFeed(
            "other", shelf.bootstrap, since=shelf.changes()[0].token, follow=False
        ).batches().__next__()


def test_a_view_that_is_not_there_is_told_with_those_that_are(shelf: ViewWriter) -> None:
    with pytest.raises(UnknownView, match=shelf.name):
        next(ChangeFeed("nothing", shelf.bootstrap).batches())


def test_partitions_that_a_view_gets_later_are_read_too(
    shelf: ViewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "REFRESH_S", 0.0)
    shelf.write(("a", 1))
    changes = iter(shelf.feed())
    token = next(changes).token
    shelf.grow(8)
    shelf.write(("g", 1))
    assert steps_of([next(changes)]) == [("upsert", "g", 1)]
    changes.close()  # type: ignore[attr-defined]  # a generator
    assert steps_of(shelf.changes(since=token)) == [("upsert", "g", 1)]


def unreadable() -> bytes:
    """A batch of two records with sound keys and checksum; the last one counts headers that are not there."""
    section = bytearray(encode_records([NewRecord(b"y", b"{}", 1)] * 2, 1))
    section[-1] = 2
    return bytes(build_batch(section, 2, base_timestamp=1, max_timestamp=1))


def damage(shelf: ViewWriter) -> None:
    """Write what is no row of the view: a batch that cannot be read, and a value that is no row."""
    with WireClient(shelf.bootstrap) as client:
        for batch in (unreadable(), batch_of(b"[1]", key=b"z")):
            assert client.produce(shelf.name, batch, partition=1).error_code is ErrorCode.none


def test_rows_before_and_after_an_unreadable_batch_are_in_the_snapshot(
    shelf: ViewWriter, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.write(("a", 1), ("b", 1))
    damage(shelf)
    shelf.write(("c", 2))
    feed = shelf.feed(follow=False)
    assert state_after(feed) == {"a": 1, "b": 1, "c": 2}
    assert feed.skipped == 3
    assert f"skipped offsets 2 to 3 of partition 1 of {shelf.name!r}" in caplog.text
    assert f"skipped offset 4 of partition 1 of {shelf.name!r}" in caplog.text


def test_a_feed_goes_on_behind_a_batch_that_cannot_be_read(shelf: ViewWriter) -> None:
    shelf.write(("a", 1))
    feed = shelf.feed()
    changes = iter(feed)
    token = next(changes).token
    damage(shelf)
    shelf.write(("a", 2))
    assert steps_of([next(changes)]) == [("upsert", "a", 2)]
    assert feed.skipped == 3
    feed.close()
    later = shelf.feed(since=token, follow=False)
    assert (steps_of(later), later.skipped) == ([("upsert", "a", 2)], 3)


def test_a_bad_entry_of_the_catalogue_hides_no_view(shelf: ViewWriter) -> None:
    shelf.write(("a", 1))
    with WireClient(shelf.bootstrap) as client:
        for batch in (
            unreadable(),
            batch_of(b"{", key=shelf.name.encode()),
            batch_of(b'{"topic": "t", "key": ["x"], "schema": {"fields": []}, "job": "j"}', key=b"other"),
        ):
            client.produce("headrace.views", batch)
    assert steps_of(shelf.changes()) == [("row", "a", 1)]


def test_a_broker_that_dies_and_comes_back_costs_a_reader_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        shelf = ViewWriter(broker.bootstrap)
        shelf.write(("a", 1))
        changes = iter(shelf.feed())
        assert steps_of([next(changes)]) == [("row", "a", 1)]
        shelf.write(("a", 2))
        assert steps_of([next(changes)]) == [("upsert", "a", 2)]
        broker.kill()
        broker.start()
        shelf.write(("a", 3), ("a", None))
        assert steps_of([next(changes), next(changes)]) == [("upsert", "a", 3), ("delete", "a", None)]
        changes.close()  # type: ignore[attr-defined]  # a generator
