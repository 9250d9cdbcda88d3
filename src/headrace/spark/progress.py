"""Progress markers: the last committed batch of a job, written in the transaction of the batch itself.

They are records of the compacted topic `headrace.progress`, with one partition and the job's name as key:

    revenue → {"query": "82d3…", "batch": 41, "offsets": {"orders": {"0": 1200}},
               "job_id": "5f0c…", "place": "/srv/state/shop/revenue"}

`query` is the id in the job's checkpoint. A job that starts with a new checkpoint counts its batches from 0,
and the markers of the old one do not apply to it. `job_id` is the id of the job's folder, which has all of
its checkpoints, and `place` is the path of that folder: a job that is started with another folder is refused.
The offsets of consumer groups expire after a week without commits; a marker does not, so a job may be stopped
for as long as its input is retained.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.client.fetch import PartitionReader
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.compression import NONE
from headrace.protocol.records import NewRecord, Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.cluster import Cluster
    from headrace.spark.checkpoint import Offsets

TOPIC: Final = "headrace.progress"
PARTITION: Final = TopicPartition(TOPIC, 0)

_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # Most markers are of other jobs: a start decodes only batches whose bytes contain its own key.
    "compression.type": "producer",
    # A start reads the whole topic: small segments that are cleaned early keep it at a few megabytes.
    "segment.bytes": str(2 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

# The key of a control record: a version, and whether the transaction was committed or aborted.
_MARKER: Final = struct.Struct(">hh")
_ABORT: Final = 0
_COMMIT: Final = 1


class BadProgressMarker(HeadraceError):
    """A record of the progress topic that is not a progress marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMarker:
    """The last committed batch of a job."""

    query: str
    batch: int
    offsets: Offsets
    """Where the batch ended in the topics that the job reads."""
    job_id: str = ""
    """The id of the folder with the job's checkpoints; empty for a query without one."""
    place: str = ""
    """The path of that folder, for messages."""


def create_progress_topic(cluster: Cluster) -> None:
    """Return when the progress topic exists."""
    if TOPIC not in cluster.topics((TOPIC,)):
        create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs=_CONFIGS)])


def read_marker(cluster: Cluster, job: str) -> ProgressMarker | None:
    """The newest marker of `job`; None if it never committed a batch.

    It is final only after the job's transactional id was opened: before that, a transaction of a driver that
    died may still commit.

    Readers of committed records stop where the first open transaction begins, and that may be one of another
    job, whose driver died and was not started again. So this reads to the end of the log, and separates
    committed markers from aborted ones itself.
    """
    newest = _NO_MARK
    undecided: dict[int, _Found] = {}
    for batch in _batches(cluster):
        header = read_header(batch)
        if header.is_control:
            if (outcome := _outcome(batch)) is not None:
                found = undecided.pop(header.producer_id, _NO_MARK)
                newest = max(newest, found) if outcome == _COMMIT else newest
        elif (record := _last_of(job.encode(), batch)) is not None:
            undecided[header.producer_id] = _Found(record.offset, record.value)
    # The job's own transactions have all ended. Compaction removes the records of aborted transactions before
    # their control records, so a marker without one was committed; a later marker of the job replaces it.
    newest = max(newest, *undecided.values(), _NO_MARK)
    return None if newest.value is None else parse_mark(job, newest.value)


class _Found(NamedTuple):
    """The value of a marker, ordered by its offset."""

    offset: int
    value: bytes | None


_NO_MARK: Final = _Found(-1, None)


def parse_mark(job: str, value: bytes) -> ProgressMarker:
    """The marker in the value of a record; raises `BadProgressMarker`."""
    try:
        fields: dict[str, Any] = json.loads(value)
        return ProgressMarker(**fields | {"batch": int(fields["batch"])})
    except (ValueError, KeyError, TypeError) as fault:
        raise BadProgressMarker(
            f"the newest record of {job!r} in {TOPIC} is not a progress marker ({fault!r}): something else "
            "writes to that topic. Only Headrace may write to it."
        ) from fault


def mark_batch(job: str, mark: ProgressMarker) -> bytearray:
    """The record batch that makes `mark` the newest of `job`; it has no producer id yet."""
    value = json.dumps(asdict(mark), separators=(",", ":")).encode()
    return encode_batch([NewRecord(key=job.encode(), value=value, timestamp=time.time_ns() // 1_000_000)])


def _batches(cluster: Cluster) -> Iterator[memoryview]:
    start, end = (
        list_offsets(cluster, {PARTITION: which}, read_committed=False)[PARTITION]
        for which in (EARLIEST, LATEST)
    )
    for piece in PartitionReader(cluster, PARTITION, start, end, read_committed=False):
        yield from split_batches(piece.batches)


def _last_of(key: bytes, batch: memoryview) -> Record | None:
    """The last record of `key` in a batch; most batches are of other jobs, and need not be decoded.

    A broker whose `compression.type` is set compresses batches of producers: their bytes do not show keys.
    """
    if read_header(batch).codec == NONE and key not in bytes(batch):
        return None
    return next((record for record in reversed(decode_batch(batch)) if record.key == key), None)


def _outcome(control: memoryview) -> int | None:
    """Whether a control record commits or aborts its transaction; None for other control records."""
    for record in decode_batch(control):
        if record.key is not None and len(record.key) >= _MARKER.size:
            _version, kind = _MARKER.unpack_from(record.key)
            return int(kind) if kind in (_ABORT, _COMMIT) else None
    return None
