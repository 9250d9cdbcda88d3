"""The load of the archive benchmark, by the raw client, so that the client is not the limit."""

import time

from bench.processes import wait_until
from bench.readings import percentile
from headrace.client.cluster import Cluster
from headrace.client.fetch import PartitionReader
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.protocol.records import NewRecord, encode_batch

EARLIEST_LOCAL = -4
BATCH_BYTES = 256 * 1024
FETCH_BYTES = 8 * 2**20
SEGMENT_BYTES = 32 * 2**20
DEADLINE_S = 600
OLD = TopicPartition("old", 0)
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "0"}


def _batch(size: int) -> bytes:
    return bytes(encode_batch([NewRecord(None, bytes(size), time.time_ns() // 1_000_000)]))


def prepare(cluster: Cluster, megabytes: int) -> None:
    """Archive records, until only the active segment is on the local disk."""
    configs = TIERED | {"segment.bytes": str(SEGMENT_BYTES)}
    create_topics(cluster, [NewTopic(name=OLD.topic, partitions=1, configs=configs)])
    producer, batch = BatchProducer(cluster), _batch(BATCH_BYTES)
    for _ in range(megabytes * 2**20 // BATCH_BYTES):
        producer.send(OLD, batch)
    producer.flush()
    first_local = list_offsets(cluster, {OLD: LATEST})[OLD] - SEGMENT_BYTES // BATCH_BYTES
    if not wait_until(lambda: _local_start(cluster) >= first_local, DEADLINE_S):
        raise TimeoutError("the segments were not archived before the deadline")


def _local_start(cluster: Cluster) -> int:
    return list_offsets(cluster, {OLD: EARLIEST_LOCAL})[OLD]


def measure_read(cluster: Cluster) -> float:
    """Megabytes a second of one consumer that reads all archived records."""
    reader = PartitionReader(cluster, OLD, 0, _local_start(cluster), fetch_bytes=FETCH_BYTES)
    began = time.perf_counter()
    size = sum(len(fetched.batches) for fetched in reader)
    return size / 1e6 / (time.perf_counter() - began)


def measure_produce(cluster: Cluster, requests: int, *, is_tiered: bool) -> float:
    """The 99th percentile, in milliseconds, of requests of 16 KiB; with small segments for many uploads."""
    partition = TopicPartition(f"new-{is_tiered}".lower(), 0)
    configs = {"segment.bytes": str(2**20)} | (TIERED if is_tiered else {})
    create_topics(cluster, [NewTopic(name=partition.topic, partitions=1, configs=configs)])
    producer, batch, seconds = BatchProducer(cluster), _batch(16 * 1024), []
    for _ in range(requests):
        began = time.perf_counter()
        producer.send(partition, batch)
        producer.flush()
        seconds.append(time.perf_counter() - began)
    return percentile(sorted(seconds), 99) * 1000
