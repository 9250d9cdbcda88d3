"""Batches as clients send them, logs in a folder, and a reader that does what Kafka's clients do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.protocol.batch import TRANSACTIONAL, check_batch, read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, Record, decode_batch, encode_batch
from headrace.storage.config import TopicConfig
from headrace.storage.recovery import PartitionCheckpoint, open_partition
from headrace.storage.remote_cache import RemoteReadPending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.storage.log import Log
    from headrace.storage.partition import PartitionLog
    from headrace.storage.time_search import Search, TimedOffset

T = TypeVar("T")

NOW = 1_700_000_000_000
PAYLOAD = 100


class Writer(NamedTuple):
    """Who writes a batch of an idempotent producer, and where in its sequence."""

    producer_id: int
    sequence: int = 0
    epoch: int = 0
    transactional: bool = False


def batch(
    *values: bytes | None,
    key: bytes | None = b"key",
    time_ms: int | tuple[int, ...] = NOW,
    codec: int = 0,
    writer: Writer | None = None,
) -> memoryview:
    """A batch with these values; `time_ms` is one time for all or one for each."""
    times = time_ms if isinstance(time_ms, tuple) else (time_ms,) * len(values)
    records = [NewRecord(key, value, time) for value, time in zip(values, times, strict=True)]
    return batch_of(records, codec=codec, writer=writer)


def batch_of(records: list[NewRecord], *, codec: int = 0, writer: Writer | None = None) -> memoryview:
    """A batch of these records."""
    if writer is None:
        return memoryview(encode_batch(records, codec=codec))
    return memoryview(
        encode_batch(
            records,
            codec=codec,
            attributes=TRANSACTIONAL if writer.transactional else 0,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=writer.sequence,
        )
    )


def filler(number: int) -> memoryview:
    """A batch of one record of 100 bytes; its value and its time tell which one it is."""
    return batch(b"%d" % number + b"." * (PAYLOAD - len(str(number))), time_ms=NOW + number)


def open_log(folder: Path, *, now_ms: int = NOW, **options: Any) -> PartitionLog:
    """A log in `folder`; settings of the topic and options of `open_partition`, mixed."""
    settings = {
        name: options.pop(name) for name in tuple(options) if name in TopicConfig.__dataclass_fields__
    }
    return open_partition(folder, TopicConfig(**settings), now_ms=now_ms, **options)


def checkpoint_of(log: PartitionLog) -> PartitionCheckpoint:
    """What the checkpoints would say if they were written now."""
    return PartitionCheckpoint(log.recovery_point, log.start_offset, log.first_dirty_offset)


def reopen(
    log: PartitionLog, *, clean: bool = False, checkpoint: PartitionCheckpoint | None = None
) -> PartitionLog:
    """The log as the next process finds it: after a clean stop or, with nothing saved, after a crash."""
    if clean:
        log.close()
    checkpoint = checkpoint_of(log) if checkpoint is None else checkpoint
    return open_partition(
        log.directory,
        log.config,
        now_ms=NOW,
        checkpoint=checkpoint,
        clean=clean,
        remote_cache=log.remote_cache,
    )


def downloaded(call: Callable[[], T]) -> T:
    """The result of a call, after the download of what it reads."""
    while True:
        try:
            return call()
        except RemoteReadPending as pending:
            pending.wait()


def read_batches(log: Log, offset: int, end_offset: int, max_bytes: int = 2**20) -> Iterator[memoryview]:
    """Each batch that fetches from `offset` on bring, whole and with a good checksum."""
    while True:
        found = downloaded(partial(log.read, offset, max_bytes, end_offset, at_least_one=True))
        if found is None:
            return
        data = memoryview(found.read())
        whole = list(split_batches(data))
        assert sum(map(len, whole)) == len(data) == found.size, "a fetch brought a part of a batch"
        for each in whole:
            header = read_header(each)
            check_batch(each, header)
            yield each
            offset = header.next_offset


def read_records(
    log: Log, offset: int | None = None, *, committed: bool = False, max_bytes: int = 2**20
) -> list[Record]:
    """What a consumer gets from `offset` on; with `committed` it skips aborted transactions as clients do."""
    offset = log.start_offset if offset is None else offset
    end_offset = log.last_stable_offset if committed else log.high_watermark
    aborted = {e.first_offset: e.producer_id for e in log.aborted.between(offset, end_offset)}
    skipped: set[int] = set()
    records: list[Record] = []
    for each in read_batches(log, offset, end_offset, max_bytes):
        header = read_header(each)
        begun = [first for first in sorted(aborted) if first <= header.last_offset]
        skipped |= {aborted.pop(first) for first in begun}
        if header.is_control:
            if header.count and not _is_commit(each):
                skipped.discard(header.producer_id)
            continue
        if not (committed and header.is_transactional and header.producer_id in skipped):
            records += [record for record in decode_batch(each) if record.offset >= offset]
    return records


def _is_commit(marker: memoryview) -> bool:
    (record,) = decode_batch(marker)
    assert record.key is not None
    return record.key[-1] == 1


def read_values(log: Log, offset: int | None = None, **options: Any) -> list[bytes | None]:
    """The values that a consumer gets."""
    return [record.value for record in read_records(log, offset, **options)]


def find_time(log: Log, timestamp: int) -> TimedOffset | None:
    """The first record that is not older than `timestamp`, found all at once."""
    return _run_search(log.search_time(timestamp))


def find_latest_time(log: Log) -> TimedOffset | None:
    """The record with the largest time, found all at once."""
    return _run_search(log.search_latest_time())


def _run_search(search: Search) -> TimedOffset | None:
    try:
        job = next(search)
        while True:
            try:
                if isinstance(job, RemoteReadPending):
                    job.wait()
                    job = search.send(None)
                    continue
                opened = None if job is None else job()
            except CorruptBatch as fault:
                job = search.throw(fault)
            else:
                job = search.send(opened)
    except StopIteration as end:
        found: TimedOffset | None = end.value
        return found
