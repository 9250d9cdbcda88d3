"""A backlog that is read in step with time."""

import time
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from headrace.client.partition import TopicPartition
from headrace.spark.alignment import Alignment, TimeSearch
from headrace.spark.event_time import TimeHints
from headrace.spark.offsets import Journal, Positions, read_journal
from headrace.spark.source import SourceSettings
from headrace.spark.stream_reader import StreamReader
from tests.spark.records import create_topic

HOUR_MS = 3_600_000
BASE_MS = 1_767_225_600_000
TOPIC = "orders"


class Logs:
    """Partitions as lists of times, and how a broker finds a time in them."""

    def __init__(self, *times_ms: list[int]) -> None:
        self.times_ms = {TopicPartition(TOPIC, number): times for number, times in enumerate(times_ms)}
        self._newest = {part: list(accumulate(times, max)) for part, times in self.times_ms.items()}
        self.questions = 0

    @property
    def begin(self) -> Positions:
        return dict.fromkeys(self.times_ms, 0)

    @property
    def end(self) -> Positions:
        return {partition: len(times) for partition, times in self.times_ms.items()}

    def at_time(self, time_ms: int) -> Positions:
        """The first offset at or after the time, −1 where there is none."""
        self.questions += 1
        found = {part: bisect_left(newest, time_ms) for part, newest in self._newest.items()}
        return {part: offset if offset < len(self._newest[part]) else -1 for part, offset in found.items()}

    def batches(self, limit: int) -> list[dict[TopicPartition, list[int]]]:
        """The times of the records of each batch, until all are read."""
        alignment = Alignment(TOPIC, None)
        position, batches = self.begin, []
        while position != self.end:
            end = alignment.ends(position, self.end, limit, self.at_time)
            batches.append({part: self.times_ms[part][position[part] : end[part]] for part in end})
            assert any(batches[-1].values()), "a batch has to make progress"
            position = end
        return batches


def lateness_needed(batches: list[dict[TopicPartition, list[int]]]) -> int:
    """By how much a record is older than the newest one of the batches before its own, at most."""
    newest, needed = -1, 0
    for batch in batches:
        times = [at for part in batch.values() for at in part]
        needed = max([needed, *(newest - at for at in times)])
        newest = max([newest, *times])
    return needed


def test_a_partition_that_is_an_hour_ahead_waits_for_the_other() -> None:
    logs = Logs(
        [BASE_MS + 1_000 * n for n in range(3_600)], [BASE_MS + HOUR_MS + 1_000 * n for n in range(3_600)]
    )
    batches = logs.batches(limit=500)
    assert lateness_needed(batches) <= 1
    assert len(batches) <= 2 * 7_200 / 500 + 2
    assert logs.questions < 5 * len(batches)


def test_partitions_of_different_size_go_through_time_together() -> None:
    logs = Logs([BASE_MS + 100 * n for n in range(10_000)], [BASE_MS + 1_000 * n for n in range(1_000)], [])
    batches = logs.batches(limit=1_000)
    assert lateness_needed(batches) <= 1
    assert all(sum(map(len, batch.values())) <= 1_000 for batch in batches)


@pytest.mark.parametrize("time_ms", [-1, 0, BASE_MS, 1 << 50])
def test_many_records_of_one_time_are_read_all_the_same(time_ms: int) -> None:
    batches = Logs([time_ms] * 1_000, [time_ms] * 10).batches(limit=100)
    assert 10 <= len(batches) <= 25


TIMES = st.lists(st.integers(BASE_MS, BASE_MS + 300), max_size=80)


@settings(max_examples=200, deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=4), st.integers(1, 60))
def test_catching_up_needs_no_more_patience_than_the_disorder_inside_a_partition(
    times_ms: list[list[int]], limit: int
) -> None:
    disorder = max((_disorder(times) for times in times_ms), default=0)
    assert lateness_needed(Logs(*times_ms).batches(limit)) <= disorder + 1


def _disorder(times: list[int]) -> int:
    newest = list(accumulate(times, max))
    return max((before - at for before, at in zip(newest, times, strict=True)), default=0)


def test_a_search_never_leaves_what_is_there() -> None:
    logs = Logs([5, 6, 7], [1, 2])
    begun = {TopicPartition(TOPIC, 0): 2, TopicPartition(TOPIC, 1): 0}
    search = TimeSearch(begun, logs.end, logs.at_time)
    assert search.ends_at(6) == {TopicPartition(TOPIC, 0): 2, TopicPartition(TOPIC, 1): 2}
    assert search.find_boundary(10).ends == logs.end
    assert search.find_boundary(10).time_ms is None


def test_streams_of_a_job_wait_for_the_one_that_is_behind(tmp_path: Path) -> None:
    slow = Logs([BASE_MS + 10 * n for n in range(1_000)])
    quick = Logs([BASE_MS + 1_000 * n for n in range(10)])
    behind = Alignment("behind", TimeHints(tmp_path))
    ahead = Alignment("ahead", TimeHints(tmp_path))
    position, others, steps = slow.begin, quick.begin, 0
    assert ahead.ends(others, quick.end, 100, quick.at_time) == quick.end, (
        "no other partition is known to be behind"
    )
    while position != slow.end:
        position = behind.ends(position, slow.end, 100, slow.at_time)
        others = ahead.ends(others, quick.end, 100, quick.at_time)
        (read,), (other,) = position.values(), others.values()
        steps += 1
        assert other <= read // 100 + 1
    assert (others, steps <= 21) == (quick.end, True)


def test_two_streams_with_backlogs_take_turns_and_both_arrive(tmp_path: Path) -> None:
    logs = {name: Logs([BASE_MS + step * n for n in range(1_000)]) for name, step in (("a", 7), ("b", 31))}
    alignments = {name: Alignment(name, TimeHints(tmp_path)) for name in logs}
    positions = {name: log.begin for name, log in logs.items()}
    for _ in range(200):
        for name, log in logs.items():
            positions[name] = alignments[name].ends(positions[name], log.end, 50, log.at_time)
    assert positions == {name: log.end for name, log in logs.items()}


def test_what_an_earlier_run_told_holds_back_nobody(tmp_path: Path) -> None:
    TimeHints(tmp_path).write("horizon.removed", {"time_ms": 1, "at_s": time.time() - 60})
    logs = Logs([BASE_MS])
    assert Alignment(TOPIC, TimeHints(tmp_path)).ends(logs.begin, logs.end, 5, logs.at_time) == logs.end


def test_a_stream_reads_its_backlog_by_the_times_of_its_records(bootstrap: str) -> None:
    create_topic(bootstrap, TOPIC, 3, **{"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, (count, ahead_ms) in enumerate(((500, 0), (50, 0), (200, HOUR_MS))):
        for n in range(count):
            at = BASE_MS + ahead_ms + n * (HOUR_MS // count)
            producer.produce(TOPIC, str(at), partition=number, timestamp=at)
    assert producer.flush(100) == 0
    batches = _read_all(_reader(bootstrap), limit=60)
    assert sum(len(times) for batch in batches for times in batch.values()) == 750
    assert lateness_needed(batches) <= 1
    assert len(batches) < 40


def _reader(bootstrap: str) -> StreamReader:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "alignByTime": "true",
    }
    source = SourceSettings.of(options, parallelism=1)
    schema = source.layout.schema()
    assert isinstance(schema, StructType)
    return StreamReader(source, schema)


def _read_all(reader: StreamReader, limit: int) -> list[dict[TopicPartition, list[int]]]:
    reader.prepareForTriggerAvailableNow()
    position, batches = reader.initialOffset(), []
    while (end := reader.latestOffset(position, ReadMaxRows(limit))) != position:
        batches.append(_times(reader, position, end))
        position = end
    reader.stop()
    return batches


def _times(reader: StreamReader, start: Journal, end: Journal) -> dict[TopicPartition, list[int]]:
    times: dict[TopicPartition, list[int]] = {partition: [] for partition in read_journal(end)}
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            for row in batch.select(["partition", "value"]).to_pylist():
                times[TopicPartition(TOPIC, row["partition"])].append(int(row["value"]))
    return times
