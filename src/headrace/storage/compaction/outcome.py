"""The outcome of compaction for one batch: removed, retained, or rewritten with fewer records."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from headrace.protocol.extent import OFFSET_DELTA, SIZE, START, TIMESTAMP_DELTA, VALUE_SIZE
from headrace.protocol.records import open_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes
    from headrace.storage.compaction.keys import OffsetMap
    from headrace.storage.compaction.rules import CompactionRules, CompactionTransactions

_NO_TIMESTAMP = -1


class Outcome:
    """Applies the rules to the batches of a log, shown in their order, and counts."""

    def __init__(self, rules: CompactionRules, keys: OffsetMap, transactions: CompactionTransactions) -> None:
        self._rules = rules
        self._keys = keys
        self._transactions = transactions
        self.records_before = 0
        self.records_after = 0
        self.unreadable_batches = 0

    def of(self, header: BatchHeader, batch: memoryview) -> Bytes | None:
        """The batch that takes the place of `batch`: itself, a smaller one, or None."""
        self.records_before += header.count
        outcome, count = self._decide(header, batch)
        self.records_after += count
        return outcome

    def _decide(self, header: BatchHeader, batch: memoryview) -> tuple[Bytes | None, int]:
        if header.is_control:
            return self._decide_marker(header, batch)
        self._transactions.meet(header)
        if self._rules.is_out_of_reach(header):
            return batch, header.count
        if header.count == 0 or self._transactions.is_aborted(header):
            return self._without_records(header)
        try:
            section, columns = walk_batch(self._keys, header, batch)
        except CorruptBatch:
            # Its checksum is right: its producer wrote it so. It must not stop compaction permanently.
            self.unreadable_batches += 1
            return batch, header.count
        return self._decide_records(header, batch, section, columns)

    def _decide_marker(self, header: BatchHeader, batch: memoryview) -> tuple[Bytes | None, int]:
        is_spent = self._transactions.meet_marker(header, batch)
        if self._rules.is_out_of_reach(header) or not is_spent:
            return batch, header.count
        if self._rules.has_expired(header) or header.count == 0:
            return (batch, header.count) if self._rules.must_stay(header) else (None, 0)
        if header.attributes & DELETE_HORIZON:
            return batch, header.count
        section, columns = walk_batch(self._keys, header, batch)
        return self._rewritten(header, section, columns, sets_horizon=True), header.count

    def _decide_records(
        self, header: BatchHeader, batch: memoryview, section: Bytes, columns: NDArray[np.int64]
    ) -> tuple[Bytes | None, int]:
        stays = self._rules.retained(header, columns, self._keys.latest(section, columns))
        count = int(np.count_nonzero(stays))
        if count == 0:
            return self._without_records(header)
        has_tombstones = bool((columns[VALUE_SIZE][stays] < 0).any())
        sets_horizon = has_tombstones and not header.attributes & DELETE_HORIZON
        if count == header.count and not sets_horizon:
            return batch, count
        return self._rewritten(header, section, columns[:, stays], sets_horizon=sets_horizon), count

    def _without_records(self, header: BatchHeader) -> tuple[Bytes | None, int]:
        if not self._rules.must_stay(header):
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
        """A batch of the records in `columns`, which lie in `section`."""
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
    """The decompressed records of a batch and their columns, or `CorruptBatch`."""
    section = open_records(batch, header)
    columns = keys.walk(section, header.count)
    if columns[OFFSET_DELTA, -1] > header.last_offset_delta:
        raise CorruptBatch("a record has an offset beyond its batch")
    return section, columns


def _kept_fields(header: BatchHeader) -> dict[str, int]:
    """What a batch keeps whatever it loses: where it stood, and who wrote it."""
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
    """The records in `columns`, byte for byte; neighbours are cut out in one piece."""
    starts = columns[START]
    ends = starts + columns[SIZE]
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ends[np.concatenate((breaks, [-1]))].tolist()
    view = memoryview(section)
    return b"".join([view[first:last] for first, last in zip(firsts, lasts, strict=True)])
