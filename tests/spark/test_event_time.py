"""Ticks, heartbeats and followed topics, as the reader of a stream plans them, without a JVM."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.client.partition import TopicPartition
from headrace.spark import stream_reader
from headrace.spark.checkpoint import count_records, parse_offsets, without_offset_markers
from headrace.spark.event_time import IdleSourceWatermark, TimeHints, next_tick, note_seen
from headrace.spark.offsets import HEARTBEAT, TICK, Journal, read_first, read_journal
from headrace.spark.stream_reader import StreamReader
from tests.spark.conftest import Open
from tests.spark.records import add_partitions, committed, create_topic, delete_topic, produce

ALL = ReadAllAvailable()


def rows(reader: StreamReader, start: Journal, end: Journal) -> list[dict[str, object]]:
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_after_rows_there_is_one_batch_without_rows_and_no_second(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 2)
    produce(bootstrap, "orders", ["a", "b"], partition=1)
    reader = open_reader(subscribe="orders", ticks="true")
    start = reader.initialOffset()
    filled = reader.latestOffset(start, ALL)
    ticked = reader.latestOffset(filled, ALL)
    assert (len(rows(reader, start, filled)), reader.partitions(filled, ticked)) == (2, [])
    assert ticked != filled
    assert read_journal(ticked) == read_journal(filled)
    assert reader.latestOffset(ticked, ALL) == ticked
    # One that was just started knows as much as the journal says.
    assert open_reader(subscribe="orders", ticks="true").latestOffset(ticked, ALL) == ticked
    assert open_reader(subscribe="orders", ticks="true").latestOffset(filled, ALL) == ticked


def test_a_stream_without_event_time_does_not_tick(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a"])
    reader = open_reader(subscribe="orders")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert without_offset_markers(end) == {"orders": {"0": 1}}
    assert TICK not in end
    assert reader.latestOffset(end, ALL) == end


def test_a_job_that_begins_at_the_end_rests_until_something_comes(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    reader = open_reader(subscribe="orders", ticks="true", startingOffsets="latest")
    begun = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.partitions(reader.initialOffset(), begun) == []
    assert reader.latestOffset(begun, ALL) == begun


def test_a_run_that_ends_with_what_is_there_ticks_before_it_ends(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a"])
    reader = open_reader(subscribe="orders", ticks="true")
    position = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, "orders", ["too late"])
    batches = [position]
    while (position := reader.latestOffset(position, ALL)) != batches[-1]:
        batches.append(position)
    assert [len(rows(reader, *pair)) for pair in pairwise(batches)] == [1, 0]


def test_signs_are_never_taken_for_topics(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a"])
    reader = open_reader(subscribe="orders", ticks="true", **{"kafka.group.id": "watched"})
    filled = reader.latestOffset(reader.initialOffset(), ALL)
    assert filled[TICK] == {"0": 0}
    reader.commit(reader.latestOffset(filled, ALL))
    assert committed(bootstrap, "watched") == {0: 1}
    text = 'v1\n{}\n{"orders":{"0":1},"headrace.heartbeat":{"0":99},"headrace.tick":{"0":1}}'
    assert parse_offsets(text, "offsets/3") == [{"orders": {"0": 1}}]
    assert count_records({}, parse_offsets(text, "offsets/3")[0]) == 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30))
def test_ticks_follow_rows_one_for_one_stretch(arrivals: list[int]) -> None:
    """Each stretch of batches with rows is followed by one tick, and a rest by none."""
    partition = TopicPartition("orders", 0)
    tick, position, batches = 0, 0, ""
    for count in [*arrivals, 0, 0]:
        before, position = {partition: position}, position + count
        signed = next_tick(tick, before=before, after={partition: position}, heartbeats_ms=(0, 0))
        batches += "r" if count else "t" if signed != tick else "."
        tick = signed
    assert "tt" not in batches
    assert ".t" not in batches
    assert "r." not in batches


def test_the_positions_of_a_followed_topic_are_journaled_and_its_rows_are_not_read(
    open_reader: Open, bootstrap: str
) -> None:
    for name in ("orders", "users"):
        create_topic(bootstrap, name)
    produce(bootstrap, "users", ["alice", "bob"])
    reader = open_reader(subscribe="orders", follow="users", ticks="true")
    start = reader.initialOffset()
    loaded = reader.latestOffset(start, ALL)
    assert read_first(loaded) == {TopicPartition("orders", 0): 0, TopicPartition("users", 0): 0}
    assert without_offset_markers(loaded) == {"orders": {"0": 0}, "users": {"0": 2}}
    assert loaded[TICK] == {"0": 0}
    assert reader.partitions(start, loaded) == []
    add_partitions(bootstrap, "users", 2)
    produce(bootstrap, "users", ["carol"], partition=1)
    grown = reader.latestOffset(loaded, ALL)
    assert grown["users"] == {"0": 2, "1": 1}
    delete_topic(bootstrap, "users")
    assert reader.latestOffset(grown, ALL) == grown
    produce(bootstrap, "orders", ["a"])
    assert len(rows(reader, grown, reader.latestOffset(grown, ALL))) == 1


def test_a_topic_that_is_read_need_not_be_followed(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a"])
    reader = open_reader(subscribe="orders", follow="orders,missing")
    start = reader.initialOffset()
    assert len(rows(reader, start, reader.latestOffset(start, ALL))) == 1


def test_a_heartbeat_is_a_row_of_time_alone_and_the_same_when_a_batch_is_repeated(
    open_reader: Open, bootstrap: str, tmp_path: Path
) -> None:
    create_topic(bootstrap, "payments")
    hints = TimeHints(tmp_path)
    options = {"ticks": "true", "idleTimeout": "0ms", "hints": str(tmp_path), "columns": "value,heartbeat"}
    reader = open_reader(subscribe="payments", **options)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    begun = reader.latestOffset(start, ALL)
    assert reader.latestOffset(begun, ALL) == begun
    note_seen(hints, "orders", 1_000, now_s=4e9)
    start, beaten = begun, reader.latestOffset(begun, ALL)
    assert beaten[HEARTBEAT] == {"0": 1_000}
    (row,) = rows(reader, start, beaten)
    assert row["value"] is None
    assert str(row["heartbeat"]).startswith("1970-01-01 00:00:01")
    ticked = reader.latestOffset(beaten, ALL)
    assert (ticked[TICK], reader.partitions(beaten, ticked)) == ({"0": 1_000}, [])
    assert reader.latestOffset(ticked, ALL) == ticked
    assert rows(open_reader(subscribe="payments", **options), start, beaten) == [row]


def test_an_idle_stream_goes_with_the_others_and_when_all_are_idle_with_the_clock(tmp_path: Path) -> None:
    now = 1_000.0
    hints = TimeHints(tmp_path)
    pulse = IdleSourceWatermark("payments", 30.0, hints, clock=lambda: now)
    assert pulse.next_ms(0, once=False) == 0, "no time is known yet"
    note_seen(hints, "orders", 500_000, now_s=1_010.0)
    now = 1_020.0
    assert pulse.next_ms(0, once=False) == 0, "it is not idle yet"
    now = 1_031.0
    assert pulse.next_ms(0, once=False) == 500_000
    assert pulse.next_ms(500_000, once=False) == 500_000, "orders are not idle"
    now = 1_040.0
    assert pulse.next_ms(500_000, once=False) == 530_000
    now = 1_069.0
    assert pulse.next_ms(530_000, once=False) == 530_000, "once in half a minute is enough"
    now = 1_070.0
    assert pulse.next_ms(530_000, once=False) == 560_000
    note_seen(hints, "payments", 500_500, now_s=1_071.0)
    now = 1_072.0
    assert pulse.next_ms(560_000, once=False) == 560_000, "it has had something just now"
    # The job is started again: how long the stream has been silent is not forgotten.
    now = 1_200.0
    assert (
        IdleSourceWatermark("payments", 30.0, hints, clock=lambda: now).next_ms(560_000, once=True) == 629_500
    )


def test_an_outage_of_the_broker_is_not_silence(tmp_path: Path) -> None:
    now = 1_000.0
    hints = TimeHints(tmp_path)
    pulse = IdleSourceWatermark("orders", 30.0, hints, clock=lambda: now)
    note_seen(hints, "orders", 500_000, now_s=1_000.0)
    now = 1_100.0
    pulse.broker_was_away()
    restarted = IdleSourceWatermark("orders", 30.0, hints, clock=lambda: now)
    for each in (pulse, restarted):
        assert each.next_ms(0, once=False) == 0
    now = 1_131.0
    for each in (pulse, restarted):
        assert each.next_ms(0, once=False) == 531_000


def test_a_reader_that_waited_for_its_broker_does_not_take_that_for_silence(
    open_reader: Open, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(IdleSourceWatermark.__init__, "__kwdefaults__", {"clock": lambda: now})
    create_topic(bootstrap, "payments")
    reader = open_reader(subscribe="payments", idleTimeout="30s", hints=str(tmp_path))
    begun = reader.initialOffset()
    note_seen(TimeHints(tmp_path), "orders", 500_000, now_s=now)
    now = 1_100.0
    with monkeypatch.context() as outage:
        outage.setattr(stream_reader, "OUTAGE_S", 0.0)  # as if the broker had answered just now
        assert HEARTBEAT not in reader.latestOffset(begun, ALL)
    assert HEARTBEAT not in reader.latestOffset(begun, ALL)
    now = 1_130.0
    assert reader.latestOffset(begun, ALL)[HEARTBEAT] == {"0": 530_000}


def test_time_that_only_passes_makes_one_heartbeat_in_a_run_that_ends(tmp_path: Path) -> None:
    moments = iter(range(1_999, 3_000))
    note_seen(TimeHints(tmp_path), "orders", 0, now_s=1_000.0)
    pulse = IdleSourceWatermark("orders", 0.001, TimeHints(tmp_path), clock=lambda: float(next(moments)))
    beaten = pulse.next_ms(0, once=True)
    assert beaten == 1_000_000
    assert pulse.next_ms(beaten, once=True) == beaten


def test_hints_that_are_torn_say_nothing(tmp_path: Path) -> None:
    hints = TimeHints(tmp_path / "new")
    assert hints.read_all("seen") == {}
    hints.write("seen.orders", {"newest_ms": 1})
    (tmp_path / "new" / "seen.payments.json").write_text("{")
    assert hints.read_all("seen") == {"orders": {"newest_ms": 1}}
    assert hints.read("seen.payments") is None
