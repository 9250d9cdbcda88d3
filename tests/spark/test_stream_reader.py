"""What a stream plans, batch after batch, without a JVM."""

import logging
import random
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from headrace.spark.checkpoint import without_offset_markers
from headrace.spark.errors import BadCheckpoint, BadOption, DataLost
from headrace.spark.offsets import FIRST, TOPIC_IDS, Journal
from headrace.spark.stream_reader import StreamReader
from headrace.testing import BrokerProcess
from tests.spark.conftest import Open
from tests.spark.records import (
    add_partitions,
    committed,
    create_topic,
    delete_records,
    delete_topic,
    produce,
)

ALL = ReadAllAvailable()


def values(reader: StreamReader, start: Journal, end: Journal) -> list[bytes]:
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_batch_ends_where_the_next_begins(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 2)
    produce(bootstrap, "orders", ["a", "b"], partition=1)
    reader = open_reader(subscribe="orders")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert end[FIRST] == {"orders": {"0": 0, "1": 0}}
    assert (without_offset_markers(end), values(reader, start, end)) == (
        {"orders": {"0": 0, "1": 2}},
        [b"a", b"b"],
    )
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []
    produce(bootstrap, "orders", ["c"], partition=0)
    assert values(reader, end, reader.latestOffset(end, ALL)) == [b"c"]


def test_a_new_stream_begins_at_the_end_unless_told(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    reader = open_reader(subscribe="orders", startingOffsets="latest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert (without_offset_markers(end), end[FIRST]) == ({"orders": {"0": 2}}, {"orders": {"0": 2}})


def test_where_a_stream_begins_is_resolved_once(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["old"])
    reader = open_reader(subscribe="orders", startingOffsets="latest")
    empty = reader.latestOffset(reader.initialOffset(), ALL)
    produce(bootstrap, "orders", ["a"])
    # Spark asks for the start of the first batch again, in this process and after a restart.
    assert values(reader, reader.initialOffset(), empty) == []
    end = reader.latestOffset(empty, ALL)
    assert values(reader, empty, end) == [b"a"]
    produce(bootstrap, "orders", ["b"])
    restarted = open_reader(subscribe="orders", startingOffsets="latest")
    assert values(restarted, restarted.initialOffset(), empty) == []
    assert values(restarted, empty, restarted.latestOffset(empty, ALL)) == [b"a", b"b"]


def test_a_first_batch_that_is_repeated_reads_the_same_records(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["old", "old"])
    options = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 1}}'}
    reader = open_reader(**options)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    produce(bootstrap, "orders", ["later"])
    restarted = open_reader(**options | {"startingOffsets": "latest"})
    assert values(restarted, restarted.initialOffset(), end) == [b"old"]


def test_a_run_that_ends_with_what_is_there_and_begins_at_the_end_reads_nothing(
    open_reader: Open, bootstrap: str
) -> None:
    create_topic(bootstrap, "orders")
    reader = open_reader(subscribe="orders", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, "orders", ["between"])
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert values(reader, reader.initialOffset(), end) == []
    later = open_reader(subscribe="orders")
    assert values(later, end, later.latestOffset(end, ALL)) == [b"between"]


def test_a_first_batch_that_does_not_say_where_it_begins_is_refused(
    open_reader: Open, bootstrap: str
) -> None:
    create_topic(bootstrap, "orders")
    reader = open_reader(subscribe="orders")
    with pytest.raises(BadCheckpoint, match="does not say where its first batch begins"):
        reader.partitions(reader.initialOffset(), {"orders": {"0": 0}})


def test_new_partitions_and_topics_are_read_from_their_beginning(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders.de")
    reader = open_reader(subscribePattern=r"orders\..*")
    start = reader.initialOffset()
    add_partitions(bootstrap, "orders.de", 2)
    create_topic(bootstrap, "orders.fr")
    produce(bootstrap, "orders.de", ["a"], partition=1)
    produce(bootstrap, "orders.fr", ["gone", "b"])
    delete_records(bootstrap, "orders.fr", 0, 1)
    end = reader.latestOffset(start, ALL)
    assert without_offset_markers(end) == {"orders.de": {"0": 0, "1": 1}, "orders.fr": {"0": 2}}
    assert values(reader, start, end) == [b"a", b"b"]


def test_a_limit_is_shared_among_partitions(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", 2)
    for number, count in enumerate((6, 3)):
        produce(bootstrap, "orders", ["x"] * count, partition=number)
    reader = open_reader(subscribe="orders", maxOffsetsPerTrigger="3")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    start = reader.initialOffset()
    assert without_offset_markers(reader.latestOffset(start, limit)) == {"orders": {"0": 2, "1": 1}}
    assert without_offset_markers(reader.latestOffset(start, ALL)) == {"orders": {"0": 6, "1": 3}}
    assert reader.reportLatestOffset() == {"orders": {"0": 6, "1": 3}}


def test_too_little_is_waited_for_but_not_for_ever(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    patient = open_reader(subscribe="orders", minOffsetsPerTrigger="3")
    start, limit = patient.initialOffset(), patient.getDefaultReadLimit()
    assert limit == ReadMinRows(3)
    begun = patient.latestOffset(start, limit)
    assert values(patient, start, begun) == []
    assert patient.latestOffset(begun, limit) == begun
    hasty = open_reader(subscribe="orders", minOffsetsPerTrigger="3", maxTriggerDelay="0ms")
    assert without_offset_markers(hasty.latestOffset(begun, limit)) == {"orders": {"0": 2}}
    produce(bootstrap, "orders", ["c"])
    assert without_offset_markers(patient.latestOffset(begun, limit)) == {"orders": {"0": 3}}


def test_what_is_available_now_does_not_grow(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a"])
    reader = open_reader(subscribe="orders", minOffsetsPerTrigger="100")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, "orders", ["too late"])
    end = reader.latestOffset(start, ReadMinRows(100))
    assert without_offset_markers(end) == {"orders": {"0": 1}}
    assert reader.latestOffset(end, ReadMinRows(100)) == end


def test_progress_is_published_to_a_group(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    reader = open_reader(subscribe="orders", **{"kafka.group.id": "watched"})
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.commit(end)
    assert committed(bootstrap, "watched") == {0: 2}


def test_a_topic_that_is_no_longer_subscribed_to_keeps_its_place(open_reader: Open, bootstrap: str) -> None:
    for name in ("orders", "payments"):
        create_topic(bootstrap, name)
        produce(bootstrap, name, ["a"])
    fewer = open_reader(subscribe="orders")
    start = {"orders": {"0": 0}, "payments": {"0": 1}}
    end = fewer.latestOffset(start, ALL)
    assert without_offset_markers(end) == {"orders": {"0": 1}, "payments": {"0": 1}}
    assert values(fewer, start, end) == [b"a"]


def test_a_deleted_topic_stops_a_stream_or_is_reported_once(
    open_reader: Open, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b"])
    start = {"orders": {"0": 2}}
    strict, lenient = (open_reader(subscribe="orders", failOnDataLoss=word) for word in ("true", "false"))
    delete_topic(bootstrap, "orders")
    with pytest.raises(DataLost, match=r"orders/0 was read up to 2 and no longer exists.*failOnDataLoss"):
        strict.latestOffset(start, ALL)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert [lenient.latestOffset(start, ALL) for _ in range(2)] == [start, start]
    assert caplog.text.count("no longer exists") == 1


def test_a_re_created_topic_stops_a_stream_even_if_it_has_more_records(
    open_reader: Open, bootstrap: str
) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["old"])
    reader = open_reader(subscribe="orders")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    delete_topic(bootstrap, "orders")
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["new", "new"])
    for each in (reader, open_reader(subscribe="orders")):
        with pytest.raises(DataLost, match="the topic 'orders' was deleted and re-created"):
            each.latestOffset(end, ALL)
    with pytest.raises(DataLost, match="the topic 'orders' was deleted and re-created"):
        open_reader(subscribe="orders").partitions(reader.initialOffset(), end)


def test_a_re_created_topic_is_read_from_its_beginning_where_loss_is_allowed(
    open_reader: Open, bootstrap: str
) -> None:
    create_topic(bootstrap, "orders", 2)
    for number in (0, 1):
        produce(bootstrap, "orders", ["old"], partition=number)
    lenient = {"subscribe": "orders", "failOnDataLoss": "false"}
    reader = open_reader(**lenient)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    delete_topic(bootstrap, "orders")
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["gone", "new", "newer"])
    delete_records(bootstrap, "orders", 0, 1)
    restarted = open_reader(**lenient)
    assert values(restarted, start, end) == []  # a batch of the old topic, repeated
    renewed = restarted.latestOffset(end, ALL)
    assert without_offset_markers(renewed) == {"orders": {"0": 3}}
    assert renewed[TOPIC_IDS] != end[TOPIC_IDS]
    assert values(restarted, end, renewed) == [b"new", b"newer"]
    assert restarted.latestOffset(renewed, ALL) == renewed


def test_a_log_that_lost_its_newest_records_is_not_read_again(open_reader: Open, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["kept"])
    start = {"orders": {"0": 3}}
    with pytest.raises(DataLost, match="the log now ends at 1, and was read up to 3"):
        open_reader(subscribe="orders").latestOffset(start, ALL)
    reader = open_reader(subscribe="orders", failOnDataLoss="false")
    end = reader.latestOffset(start, ALL)
    assert (without_offset_markers(end), values(reader, start, end)) == ({"orders": {"0": 1}}, [])


def test_a_batch_of_a_checkpoint_older_than_the_log_is_refused_before_it_runs(
    open_reader: Open, bootstrap: str
) -> None:
    create_topic(bootstrap, "orders")
    produce(bootstrap, "orders", ["a", "b", "c"])
    delete_records(bootstrap, "orders", 0, 2)
    start, end = {"orders": {"0": 0}}, {"orders": {"0": 3}}
    with pytest.raises(DataLost, match="orders/0 lost the offsets 0 to 1"):
        open_reader(subscribe="orders").partitions(start, end)
    assert values(open_reader(subscribe="orders", failOnDataLoss="false"), start, end) == [b"c"]


def test_a_stream_has_no_end(open_reader: Open) -> None:
    with pytest.raises(BadOption, match="a stream has no end"):
        open_reader(subscribe="orders", endingOffsets="latest")


@pytest.mark.parametrize("seed", range(5))
def test_every_record_is_in_one_batch_whatever_comes_when(
    open_reader: Open, bootstrap: str, seed: int
) -> None:
    chance = random.Random(seed)
    create_topic(bootstrap, "orders")
    written: dict[int, list[bytes]] = {0: []}
    found: dict[int, list[bytes]] = {}
    position = open_reader(subscribe="orders").initialOffset()
    for step in range(12):
        if chance.random() < 0.2:
            written[len(written)] = []
            add_partitions(bootstrap, "orders", len(written))
        number = chance.choice(list(written))
        values = [f"{step}.{index}".encode() for index in range(chance.randrange(8))]
        produce(bootstrap, "orders", values, partition=number)
        written[number] += values
        # A reader that was just opened stands for a driver that was just restarted.
        reader = open_reader(subscribe="orders", minPartitions=str(chance.randrange(1, 4)))
        limit = ALL if step == 11 else ReadMaxRows(chance.randrange(1, 10))
        end = reader.latestOffset(position, limit)
        for task in reader.partitions(position, end):
            for batch in reader.read(task):
                for row in batch.select(["partition", "value"]).to_pylist():
                    found.setdefault(row["partition"], []).append(row["value"])
        position = end
    assert found == {number: values for number, values in written.items() if values}


def test_a_stream_survives_its_broker(open_reader: Open, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.bootstrap, "orders")
        produce(broker.bootstrap, "orders", ["a"])
        reader = open_reader(subscribe="orders", **{"kafka.bootstrap.servers": broker.bootstrap})
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        broker.kill()
        broker.start()
        produce(broker.bootstrap, "orders", ["b"])
        assert values(reader, start, end) == [b"a"]
        assert values(reader, end, reader.latestOffset(end, ALL)) == [b"b"]
