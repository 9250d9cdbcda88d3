"""The stages of the transactional sink: encoding, the spool, and writing into the transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import ProducerIdentity
from headrace.columns.encoding import Encoded
from headrace.protocol.records import decode_batch
from headrace.spark.errors import UnknownTopic
from headrace.spark.options import ClusterConnection
from headrace.spark.transactional_batch import Forecast, OutputTopics
from headrace.spark.transactional_writer import (
    OVERFLOW,
    PROPERTY,
    Membership,
    Spool,
    Spooled,
    TaskInstructions,
    WrittenTwice,
    encode_rows,
    read_spool,
    write_batches,
    write_spool,
)
from headrace.testing import EmbeddedBroker


def encoded(topic: str, partition: int, batch: bytes) -> Encoded:
    return Encoded(topic=topic, partition=partition, records=len(batch), batch=batch)


def test_batches_come_back_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    write_spool(tmp_path, 10, 0, [[encoded("b", 1, b"third")]])
    write_spool(tmp_path, 9, 0, [[encoded("a", 0, b"first")], [], [encoded("b", 1, b"second")]])
    write_spool(tmp_path, 11, 0, [])
    assert [(each.partition, bytes(each.batch)) for each in read_spool(tmp_path)] == [
        (TopicPartition("a", 0), b"first"),
        (TopicPartition("b", 1), b"second"),
        (TopicPartition("b", 1), b"third"),
    ]


def test_a_task_that_is_repeated_counts_once_and_one_that_failed_not_at_all(tmp_path: Path) -> None:
    def failing() -> Iterator[list[Encoded]]:
        yield [encoded("a", 0, b"half")]
        raise RuntimeError

    try:
        write_spool(tmp_path, 0, 0, failing())
    except RuntimeError:
        write_spool(tmp_path, 0, 1, [[encoded("a", 0, b"whole")]])
    write_spool(tmp_path, 0, 2, [[encoded("a", 0, b"whole")]])
    assert read_spool(tmp_path) == [Spooled(TopicPartition("a", 0), 5, b"whole")]


def test_batches_outlive_their_files_and_nothing_is_left_behind(tmp_path: Path) -> None:
    left = tmp_path / "spool" / "0"
    left.mkdir(parents=True)
    (left / "0.spool").write_bytes(b"of a driver that was killed")
    with Spool(tmp_path / "spool") as spool:
        folders = [spool.folder(), spool.folder()]
        write_spool(folders[1], 0, 0, [[encoded("a", 0, b"kept")]])
        assert read_spool(folders[0]) == []
        (kept,) = read_spool(folders[1])
    assert list(tmp_path.iterdir()) == []
    assert bytes(kept.batch) == b"kept"


ROWS = pa.record_batch({"key": [b"a", b"b", None], "value": [b"1", b"2", b"3"]})


def encode(orders: TaskInstructions, *batches: pa.RecordBatch) -> list[dict[str, object]]:
    encoded = encode_rows(batches, orders, topic="out", compression="none")
    return [row for batch in encoded for row in batch.to_pylist()]


@contextmanager
def task(*, attempt: int = 0, partition: int = 0, **properties: str) -> Iterator[None]:
    """Be a task of Spark's, as far as Python can tell."""
    context = TaskContext(
        attemptNumber=attempt,
        cpus=1,
        localProperties=properties,
        partitionId=partition,
        resources={},
        stageId=7,
        taskAttemptId=1,
    )
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def test_every_row_is_encoded_once_and_slots_tell_the_partitions_of_all_topics_apart() -> None:
    rows = encode(TaskInstructions(partition_counts={"other": 4, "out": 3}), ROWS)
    assert {row["slot"] for row in rows} <= {4, 5, 6}
    assert all(row["slot"] == 4 + row["partition"] for row in rows)
    assert sorted(record.value for row in rows for record in decode_batch(row["batch"])) == [b"1", b"2", b"3"]


def test_a_task_that_has_too_much_for_the_driver_says_so_and_stops() -> None:
    rows = encode(TaskInstructions(partition_counts={"out": 1}, inline_bytes=50), ROWS)
    assert [row["records"] for row in rows] == [OVERFLOW]


def test_a_batch_that_is_done_is_computed_and_thrown_away() -> None:
    taken = []
    encoded = encode_rows(
        (taken.append(1) or ROWS for _ in range(3)),
        TaskInstructions(partition_counts={}, discard=True),
        topic="out",
        compression="none",
    )
    assert list(encoded) == []
    assert len(taken) == 3


def test_the_batches_of_a_later_task_follow_those_of_an_earlier_one() -> None:
    orders = TaskInstructions(partition_counts={"out": 2})
    with task(partition=0):
        first = encode(orders, ROWS, ROWS)
    with task(partition=1):
        second = encode(orders, ROWS)
    assert max(row["position"] for row in first) < min(row["position"] for row in second)


def test_a_task_finds_the_orders_of_its_job() -> None:
    assert TaskInstructions.of_task() is None
    text = '{"partition_counts": {"out": 2}, "inline_bytes": 10, "discard": false}'
    with task(**{PROPERTY: text}):
        assert TaskInstructions.of_task() == TaskInstructions(partition_counts={"out": 2}, inline_bytes=10)


def test_the_second_attempt_of_a_writing_task_refuses() -> None:
    membership = Membership("headrace.job", ProducerIdentity(1, 0), {})
    with task(attempt=1), pytest.raises(WrittenTwice, match="task 0 of stage 7 failed while it wrote"):
        list(write_batches([], ClusterConnection(bootstrap="127.0.0.1:1"), membership))


def test_a_topic_that_grew_is_written_with_its_new_number_of_partitions(
    headrace_broker: EmbeddedBroker,
) -> None:
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap})
    admin.create_topics([NewTopic("out", 2, 1)])["out"].result(100)
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        patient, curious = OutputTopics(cluster, ["out"]), OutputTopics(cluster, ["out"], fresh_s=-1)
        assert patient.partition_counts() == curious.partition_counts() == {"out": 2}
        admin.create_partitions([NewPartitions("out", 5)])["out"].result(100)
        assert patient.partition_counts() == {"out": 2}
        assert curious.partition_counts() == {"out": 5}


def test_a_topic_that_is_missing_is_named(headrace_broker: EmbeddedBroker) -> None:
    with (
        Cluster.of(headrace_broker.bootstrap) as cluster,
        pytest.raises(UnknownTopic, match="the job writes to gone"),
    ):
        OutputTopics(cluster, ["gone"]).partition_counts()


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 10**9))
def test_a_forecast_follows_the_last_batch_that_had_input(records: int, size: int, limit: int) -> None:
    forecast = Forecast(limit)
    forecast.learn(records, size)
    forecast.learn(0, 10**15)
    assert forecast.is_small(0)
    assert forecast.is_small(records) == (records * (size / records) <= limit)
