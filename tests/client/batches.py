"""Batches to write, and what a reader makes of the batches that it gets."""

import time
import uuid
from collections.abc import Iterable, Sequence

from headrace.client.cluster import Cluster
from headrace.client.fetch import FetchedBatches, PartitionReader
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import ProducerIdentity
from headrace.protocol.batch import TRANSACTIONAL, read_header, split_batches
from headrace.protocol.records import NewRecord, decode_batch, encode_batch

Values = Sequence[bytes]


def fresh_name(kind: str) -> str:
    """A name that no other test has used on this broker."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def numbers(start: int, stop: int) -> list[bytes]:
    """Values that tell their place."""
    return [b"%d" % number for number in range(start, stop)]


def batch(
    values: Values,
    identity: ProducerIdentity | None = None,
    sequence: int = 0,
    *,
    transactional: bool = True,
    time_ms: int | None = None,
) -> bytearray:
    """A batch with these values; with an identity it carries that and its sequence."""
    now_ms = int(time.time() * 1000) if time_ms is None else time_ms
    records = [NewRecord(None, value, now_ms) for value in values]
    if identity is None:
        return encode_batch(records)
    return encode_batch(
        records,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
    )


def write(cluster: Cluster, partition: TopicPartition, *batches: bytearray, **options: str) -> int:
    """The offset of the first of the batches, once all are stored."""
    producer = BatchProducer(cluster, transactional_id=options.get("transactional_id"))
    for each in batches:
        producer.send(partition, each)
    return producer.flush()[partition]


def end_of(cluster: Cluster, partition: TopicPartition, *, read_committed: bool = True) -> int:
    """Where the partition ends for such a reader."""
    return list_offsets(cluster, {partition: LATEST}, read_committed=read_committed)[partition]


def read_values(cluster: Cluster, partition: TopicPartition, *, read_committed: bool = True) -> list[bytes]:
    """All values that a reader of the whole partition sees."""
    start = list_offsets(cluster, {partition: EARLIEST})[partition]
    end = end_of(cluster, partition, read_committed=read_committed)
    pieces = PartitionReader(cluster, partition, start, end, read_committed=read_committed)
    return values_of(pieces, start, end)


def values_of(pieces: Iterable[FetchedBatches], start: int, end: int) -> list[bytes]:
    """The values with offsets from `start` up to `end` in pieces of batches, without what was aborted."""
    values = []
    for piece in pieces:
        for each in _visible(piece):
            values += [record.value or b"" for record in decode_batch(each) if start <= record.offset < end]
    return values


def _visible(piece: FetchedBatches) -> Iterable[memoryview]:
    """The batches that count: as Kafka's clients do it, with the aborted transactions that are told."""
    waiting = sorted(piece.aborted, key=lambda entry: entry[1])
    aborted: set[int] = set()
    for each in split_batches(piece.batches):
        header = read_header(each)
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            yield each
