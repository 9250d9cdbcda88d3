"""What a partition must hold, as a plain list of batches: the truth that the log is held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.producers import CACHED_BATCHES

if TYPE_CHECKING:
    from headrace.protocol.records import Record


class Sent(NamedTuple):
    """A batch of an idempotent producer, so that it can be sent again."""

    sequence: int
    count: int
    base_offset: int


@dataclass(slots=True, kw_only=True)
class ModelBatch:
    """A batch that was written: records, or the marker that ends a transaction."""

    base_offset: int
    count: int
    records: list[Record] = field(default_factory=list)
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    committed: bool | None = None
    """For a marker, what it decided."""

    @property
    def end(self) -> int:
        return self.base_offset + self.count


@dataclass(slots=True, kw_only=True)
class ModelProducer:
    """What must be known of a producer after some batches."""

    epoch: int
    next_sequence: int = 0
    sent: list[Sent] = field(default_factory=list)
    first_open: int | None = None


class Aborted(NamedTuple):
    """A transaction that readers of committed records must not see."""

    producer_id: int
    first_offset: int
    marker: int


class PartitionModel:
    """All that was ever written and not lost, what compaction removed of it, and where the log begins."""

    def __init__(self) -> None:
        self.batches: list[ModelBatch] = []
        self.removed: set[int] = set()
        self.start = 0
        self.durable_end = 0
        """Below this nothing may be lost, whatever happens to the machine."""
        self.was_compacted = False

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def add(self, batch: ModelBatch) -> None:
        assert batch.base_offset == self.end
        self.batches.append(batch)

    def lose_from(self, offset: int) -> None:
        """Forget the batches from `offset` on, which a power failure took."""
        assert offset >= self.durable_end, "the log lost what was safe"
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.removed = {each for each in self.removed if each < offset}

    def producers(self) -> dict[int, ModelProducer]:
        """Each producer as it is after all batches."""
        found: dict[int, ModelProducer] = {}
        for batch in self.batches:
            if batch.producer_id < 0:
                continue
            producer = found.setdefault(batch.producer_id, ModelProducer(epoch=batch.epoch))
            if producer.epoch != batch.epoch:
                producer.epoch, producer.next_sequence, producer.sent = batch.epoch, 0, []
            if batch.committed is not None:
                producer.first_open = None
                continue
            producer.next_sequence = batch.sequence + batch.count
            sent = Sent(batch.sequence, batch.count, batch.base_offset)
            producer.sent = [*producer.sent, sent][-CACHED_BATCHES:]
            if batch.transactional and producer.first_open is None:
                producer.first_open = batch.base_offset
        return found

    def aborted(self) -> list[Aborted]:
        """The aborted transactions, in the order of their markers."""
        opened: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.committed is None:
                if batch.transactional:
                    opened.setdefault(batch.producer_id, batch.base_offset)
                continue
            first = opened.pop(batch.producer_id, None)
            if first is not None and not batch.committed:
                found.append(Aborted(batch.producer_id, first, batch.base_offset))
        return found

    def records(self, end: int) -> list[Record]:
        """What a consumer that reads everything below `end` must get."""
        return [
            record
            for batch in self.batches
            for record in batch.records
            if self.start <= record.offset < end and record.offset not in self.removed
        ]

    def committed_records(self, end: int) -> list[Record]:
        """What a consumer of committed records must get below `end`."""
        aborted = self.aborted()
        void = {
            offset
            for batch in self.batches
            if batch.transactional
            for entry in aborted
            if batch.producer_id == entry.producer_id
            and entry.first_offset <= batch.base_offset <= entry.marker
            for offset in range(batch.base_offset, batch.end)
        }
        return [record for record in self.records(end) if record.offset not in void]

    def last_stable_offset(self, high_watermark: int) -> int:
        opened = [each.first_open for each in self.producers().values() if each.first_open is not None]
        return max(self.start, min([high_watermark, *opened]))

    def compacted(self, clean_until: int, left: list[Record]) -> None:
        """Check what a compaction left of the log below `clean_until`, and take it as what must be there."""
        before = self.records(self.end)
        offsets = {record.offset for record in left}
        kept = [record for record in before if record.offset in offsets]
        assert left == kept, "compaction changed a record"
        latest = {record.key: record for record in self.committed_records(clean_until)}
        needed = {record.offset for record in latest.values() if record.value is not None}
        needed |= {record.offset for record in before if record.offset >= clean_until}
        assert needed <= offsets, "compaction removed a record that must stay"
        self.removed |= {record.offset for record in before} - offsets
        self.was_compacted = True

    def is_clean(self, clean_until: int) -> bool:
        """Whether at most one record of each key is left below an offset."""
        keys = [record.key for record in self.records(clean_until)]
        return len(keys) == len(set(keys))
