"""The rules of compaction, which are those of Kafka, and their application to batches.

- The latest record of each key is retained, and offsets do not change. Records without a key are removed.
- A tombstone (null value) is retained until the delete horizon of its batch. The horizon is set when a batch
  with tombstones is first cleaned: attribute bit 6, and the horizon as the base timestamp (KIP-534).
- Records of aborted transactions are removed. The marker of a transaction is retained until no batch of the
  transaction is left, and then until a horizon: a consumer may have read a part of the transaction.
- The last batch of a producer is retained, if necessary without records, because it has the producer's
  sequence; and the last batch of the range, because it has the end offset.
- Batches at or after `end` do not change.

One difference from Kafka: a marker that is retained as the last batch of its producer keeps its record, so
that a replay finds the producer's epoch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.batch import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
)
from headrace.protocol.compression import compress
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import (
    KEY_SIZE,
    OFFSET_DELTA,
    SIZE,
    START,
    TIMESTAMP_DELTA,
    VALUE_SIZE,
    decode_batch,
    decompress_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes
    from headrace.storage.compaction.offset_map import OffsetMap
    from headrace.storage.producers import AbortedTransaction


_NO_TIMESTAMP: Final = -1
_MAX_TIMESTAMP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The rules for one compaction."""

    end: int
    clean_until: int
    now_ms: int
    delete_retention_ms: int
    active_producers: Mapping[int, int]

    @property
    def horizon_ms(self) -> int:
        """The delete horizon for a tombstone or marker that is cleaned for the first time."""
        return min(self.now_ms + self.delete_retention_ms, _MAX_TIMESTAMP)

    def is_excluded(self, header: BatchHeader) -> bool:
        """Whether the batch must be copied unchanged."""
        return header.next_offset > self.end

    def must_retain(self, header: BatchHeader) -> bool:
        """Whether the batch is retained even without records."""
        is_last_of_producer = self.active_producers.get(header.producer_id) == header.last_offset
        return is_last_of_producer or header.next_offset == self.clean_until

    def has_expired(self, header: BatchHeader) -> bool:
        """Whether the delete horizon of the batch has passed."""
        return bool(header.attributes & DELETE_HORIZON) and header.base_timestamp <= self.now_ms

    def retained(
        self, header: BatchHeader, columns: NDArray[np.int64], latest: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which records of a batch are retained; `latest` has the latest offset of each key."""
        retained: NDArray[np.bool_] = columns[KEY_SIZE] >= 0
        retained &= columns[OFFSET_DELTA] + header.base_offset >= latest
        if self.has_expired(header):
            retained &= columns[VALUE_SIZE] >= 0
        return retained


_MARKER_KEY = struct.Struct(">hh")
ABORT: Final = 0
COMMIT: Final = 1


class CompactionTransactions:
    """Tracks the transactions of a pass over the log, batch by batch.

    A marker is obsolete if no batch of its transaction is left: only consumers that have read a part of the
    transaction need it.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._seen: set[int] = set()
        self.kept_aborts: list[AbortedTransaction] = []
        """Aborted transactions whose marker is retained, since this list was last cleared."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        return header.is_transactional and any(
            entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._aborted.get(header.producer_id, ())
        )

    def add_batch(self, header: BatchHeader) -> None:
        """Track a data batch."""
        if header.is_transactional:
            self._seen.add(header.producer_id)

    def add_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Track a control batch; returns whether it is obsolete."""
        if header.count == 0:
            return True
        if _marker_kind(batch) not in (ABORT, COMMIT):
            return False
        if header.producer_id not in self._seen:
            return True
        self._seen.remove(header.producer_id)
        self.kept_aborts += (
            entry
            for entry in self._aborted.get(header.producer_id, ())
            if entry.last_offset == header.base_offset
        )
        return False


def _marker_kind(batch: memoryview) -> int | None:
    """The type of a control record; None if it is not a transaction marker."""
    key = decode_batch(batch)[0].key
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(key)
    return int(kind)


class BatchFilter:
    """Applies the rules to the batches of a log, in order, and counts records."""

    def __init__(self, rules: CompactionRules, keys: OffsetMap, transactions: CompactionTransactions) -> None:
        self._rules = rules
        self._keys = keys
        self._transactions = transactions
        self.records_before = 0
        self.records_after = 0
        self.unreadable_batches = 0

    def apply(self, header: BatchHeader, batch: memoryview) -> Bytes | None:
        """The batch that replaces `batch`: itself, a smaller one, or None."""
        self.records_before += header.count
        retained, count = self._filter(header, batch)
        self.records_after += count
        return retained

    def _filter(self, header: BatchHeader, batch: memoryview) -> tuple[Bytes | None, int]:
        if header.is_control:
            return self._filter_marker(header, batch)
        self._transactions.add_batch(header)
        if self._rules.is_excluded(header):
            return batch, header.count
        if header.count == 0 or self._transactions.is_aborted(header):
            return self._without_records(header)
        try:
            section, columns = walk_batch(self._keys, header, batch)
        except CorruptBatch:
            # Its producer wrote it so, with a valid checksum. It must not stop compaction.
            self.unreadable_batches += 1
            return batch, header.count
        return self._filter_records(header, batch, section, columns)

    def _filter_marker(self, header: BatchHeader, batch: memoryview) -> tuple[Bytes | None, int]:
        is_obsolete = self._transactions.add_marker(header, batch)
        if self._rules.is_excluded(header) or not is_obsolete:
            return batch, header.count
        if self._rules.has_expired(header) or header.count == 0:
            return (batch, header.count) if self._rules.must_retain(header) else (None, 0)
        if header.attributes & DELETE_HORIZON:
            return batch, header.count
        section, columns = walk_batch(self._keys, header, batch)
        return self._rewritten(header, section, columns, sets_horizon=True), header.count

    def _filter_records(
        self, header: BatchHeader, batch: memoryview, section: Bytes, columns: NDArray[np.int64]
    ) -> tuple[Bytes | None, int]:
        retained = self._rules.retained(header, columns, self._keys.latest(section, columns))
        count = int(np.count_nonzero(retained))
        if count == 0:
            return self._without_records(header)
        has_tombstones = bool((columns[VALUE_SIZE][retained] < 0).any())
        sets_horizon = has_tombstones and not header.attributes & DELETE_HORIZON
        if count == header.count and not sets_horizon:
            return batch, count
        return self._rewritten(header, section, columns[:, retained], sets_horizon=sets_horizon), count

    def _without_records(self, header: BatchHeader) -> tuple[Bytes | None, int]:
        if not self._rules.must_retain(header):
            return None, 0
        return build_batch(
            b"",
            0,
            base_timestamp=_NO_TIMESTAMP,
            max_timestamp=header.max_timestamp,
            attributes=header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL),
            **_kept_fields(header),
        ), 0

    def _rewritten(
        self, header: BatchHeader, section: Bytes, columns: NDArray[np.int64], *, sets_horizon: bool
    ) -> Bytes:
        """A batch of the records in `columns` of `section`."""
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if sets_horizon:
            attributes |= DELETE_HORIZON
            base_timestamp = self._rules.horizon_ms
            records = self._keys.restamp(section, columns, base_timestamp - header.base_timestamp)
        else:
            records = _gather(section, columns)
        return build_batch(
            compress(header.codec, records),
            columns.shape[1],
            base_timestamp=base_timestamp,
            max_timestamp=_max_timestamp(header, columns),
            attributes=attributes,
            **_kept_fields(header),
        )


def walk_batch(keys: OffsetMap, header: BatchHeader, batch: memoryview) -> tuple[Bytes, NDArray[np.int64]]:
    """The decompressed records of a batch and their columns; raises `CorruptBatch`."""
    section = decompress_records(batch, header)
    columns = keys.walk(section, header.count)
    if columns[OFFSET_DELTA, -1] > header.last_offset_delta:
        raise CorruptBatch("a record has an offset after the end of its batch")
    return section, columns


def _kept_fields(header: BatchHeader) -> dict[str, int]:
    """The fields of a batch that do not change: its offsets and its producer."""
    return {
        "base_offset": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "last_offset_delta": header.last_offset_delta,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }


def _max_timestamp(header: BatchHeader, columns: NDArray[np.int64]) -> int:
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    latest = header.base_timestamp + int(columns[TIMESTAMP_DELTA].max())
    return max(_NO_TIMESTAMP, min(latest, header.max_timestamp))


def _gather(section: Bytes, columns: NDArray[np.int64]) -> bytes:
    """The bytes of the records in `columns`; adjacent records are copied together."""
    starts = columns[START]
    ends = starts + columns[SIZE]
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ends[np.concatenate((breaks, [-1]))].tolist()
    view = memoryview(section)
    return b"".join([view[first:last] for first, last in zip(firsts, lasts, strict=True)])
