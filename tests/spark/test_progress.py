"""Progress markers: the newest committed marker of each job counts."""

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.cluster import Cluster
from headrace.client.shared_transaction import SharedTransaction
from headrace.protocol.records import decode_batch
from headrace.spark.progress import (
    PARTITION,
    TOPIC,
    BadProgressMarker,
    ProgressMarker,
    create_progress_topic,
    mark_batch,
    parse_mark,
    read_marker,
)
from headrace.spark.transactional_writer import Membership, TransactionWriter
from headrace.testing import EmbeddedBroker, broker


def a_mark(batch: int) -> ProgressMarker:
    return ProgressMarker(query="q", batch=batch, offsets={"orders": {"0": batch * 10}})


def write(cluster: Cluster, job: str, *marks: ProgressMarker, end: str | None = "commit") -> None:
    """Write marks in one transaction, and end it so, or leave it open."""
    transaction = SharedTransaction.open(cluster, f"headrace.{job}")
    transaction.add([PARTITION])
    writer = TransactionWriter(cluster, Membership(f"headrace.{job}", transaction.identity, {}))
    for mark in marks:
        writer.write(PARTITION, 1, mark_batch(job, mark))
    writer.flush()
    match end:
        case "commit":
            transaction.commit()
        case "abort":
            transaction.abort()


def test_a_job_without_a_batch_has_no_mark(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        assert read_marker(cluster, "revenue") is None


def test_the_newest_mark_of_a_job_is_read_back(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        write(cluster, "revenue", a_mark(0), a_mark(1))
        write(cluster, "revenue", a_mark(2))
        write(cluster, "status", a_mark(7))
        assert read_marker(cluster, "revenue") == a_mark(2)
        assert read_marker(cluster, "status") == a_mark(7)


def test_an_aborted_mark_does_not_count(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        write(cluster, "revenue", a_mark(0))
        write(cluster, "revenue", a_mark(1), end="abort")
        assert read_marker(cluster, "revenue") == a_mark(0)


def test_an_open_transaction_of_another_job_hides_no_mark(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        write(cluster, "revenue", a_mark(0))
        write(cluster, "status", a_mark(5), end=None)
        write(cluster, "revenue", a_mark(1))
        write(cluster, "revenue", a_mark(2), end="abort")
        assert read_marker(cluster, "revenue") == a_mark(1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_mark_that_was_compressed_is_found(headrace_broker: EmbeddedBroker, codec: str) -> None:
    mark = ProgressMarker(
        query="q", batch=41, offsets={"orders": {str(n): 120_000 + 7919 * n for n in range(64)}}
    )
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        produce(headrace_broker, f"shop.{codec}", mark, **{"compression.type": codec})
        assert read_marker(cluster, f"shop.{codec}") == mark


def test_a_mark_without_an_outcome_does_not_replace_a_newer_one(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        produce(headrace_broker, "revenue", a_mark(1))
        assert read_marker(cluster, "revenue") == a_mark(1)
        write(cluster, "revenue", a_mark(2))
        assert read_marker(cluster, "revenue") == a_mark(2)


def produce(kafka: EmbeddedBroker, job: str, mark: ProgressMarker, **options: str) -> None:
    """Write a mark without a transaction: after compaction one may have no marker any more."""
    (record,) = decode_batch(mark_batch(job, mark))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0} | options)
    producer.produce(TOPIC, key=record.key, value=record.value)
    assert producer.flush(100) == 0


@given(
    st.lists(st.tuples(st.sampled_from(["a", "ab", "b"]), st.sampled_from(["commit", "abort"])), max_size=8)
)
@settings(max_examples=20, deadline=None)
def test_the_newest_committed_mark_of_each_job_counts(ends: list[tuple[str, str]]) -> None:
    newest: dict[str, ProgressMarker] = {}
    with broker() as kafka, Cluster.of(kafka.bootstrap) as cluster:
        create_progress_topic(cluster)
        write(cluster, "c", a_mark(9), end=None)
        for batch, (job, end) in enumerate(ends):
            write(cluster, job, a_mark(batch), end=end)
            if end == "commit":
                newest[job] = a_mark(batch)
        assert {job: read_marker(cluster, job) for job in ("a", "ab", "b")} == {
            job: newest.get(job) for job in ("a", "ab", "b")
        }


def test_the_topic_of_the_marks_is_made_once(headrace_broker: EmbeddedBroker) -> None:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_progress_topic(cluster)
        create_progress_topic(cluster)
        assert cluster.topics([TOPIC])[TOPIC].partitions == (0,)


@pytest.mark.parametrize("value", [b"", b"7", b"{}", b'{"query": "q", "batch": "x", "offsets": {}}', b"\xff"])
def test_a_record_that_is_no_mark_is_named(value: bytes) -> None:
    with pytest.raises(BadProgressMarker, match=r"newest record of 'revenue' in headrace\.progress"):
        parse_mark("revenue", value)
