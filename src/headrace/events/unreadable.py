"""Which aggregates of a partition have a history that cannot be read whole.

An aggregate must not decide on a state that lacks an event, and one bad record must not stop the others:

- A record that is no event, or an event that cannot be applied, concerns the aggregate of its key.
- A batch that fails its checksum concerns the aggregates that its keys and headers name, as far as its
  records can still be told apart.
- A batch that holds no records at all, and has no producer id, was not written by an event store: it concerns
  nobody. With a producer id it may hold events of any aggregate of the partition. An aggregate is known to be
  whole when a later event continues its versions; the others take no commands.

In every case a later event that continues the versions of the aggregate proves that nothing is missing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.batch import read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from headrace.client.records import UnreadableRecords
    from headrace.protocol.records import Record

logger = logging.getLogger(__name__)


class _Fault(NamedTuple):
    first: int
    last: int
    reason: str
    is_final: bool
    """Whether no later event can prove that the history is whole."""


class UnreadableHistories:
    """Finds out, record by record, which aggregates of one partition cannot be read whole."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Fault] = {}
        self._of_any: _Fault | None = None
        self._continued: dict[str, int] = {}
        """The last offset of aggregates that have events after the last batch that concerns any of them."""

    def add(self, records: UnreadableRecords) -> None:
        """Note that these offsets cannot be read."""
        logger.warning("%s", records)
        fault = _Fault(records.first, records.last, str(records), is_final=False)
        ids = ids_in(records)
        if ids is None:
            self._of_any = fault
            return
        for key in ids:
            if not self.is_final(key):
                self._by_id[key] = fault

    def add_event(self, key: str, offset: int, reason: str) -> None:
        """Note that the event at `offset` cannot be applied: its aggregate takes no commands any more."""
        logger.warning("%s", reason)
        cause = self._by_id.get(key) or self._of_any
        if cause is not None:
            reason = f"{reason} Before it, {cause.reason}"
        self._by_id[key] = _Fault(offset, offset, reason, is_final=True)

    def continued(self, key: str, offset: int) -> None:
        """Note that the event at `offset` continues the versions of its aggregate."""
        known = self._by_id.get(key)
        if known is not None and not known.is_final and offset > known.last:
            del self._by_id[key]
        if self._of_any is not None and offset > self._of_any.last:
            self._continued[key] = offset

    def is_final(self, key: str) -> bool:
        """Whether an event of the aggregate cannot be applied."""
        known = self._by_id.get(key)
        return known is not None and known.is_final

    def reason(self, key: str) -> str | None:
        """Why the aggregate cannot be read whole; None if it can."""
        if key in self._by_id:
            return self._by_id[key].reason
        if self._of_any is not None and self._continued.get(key, -1) < self._of_any.last:
            return f"{self._of_any.reason}, and no later event shows that none of this aggregate is missing"
        return None

    @property
    def first_offset(self) -> int | None:
        """The offset from which on the log must be read again to find all of this; None if all is well."""
        offsets = [fault.first for fault in self._by_id.values()]
        if self._of_any is not None:
            offsets.append(self._of_any.first)
        return min(offsets, default=None)


def ids_in(records: UnreadableRecords) -> frozenset[str] | None:
    """The aggregates whose events these records may be; None if that cannot be told."""
    if not records.batch:
        key = (records.key or b"").decode(errors="replace")
        return frozenset({key} if key else ())
    try:
        found = decode_batch(records.batch)
    except CorruptBatch:
        is_foreign = read_header(records.batch).producer_id < 0
        return frozenset() if is_foreign else None
    return frozenset(key for record in found for key in _names(record))


def _names(record: Record) -> set[str]:
    """What key and headers say; where damage made them differ, each of the two may be the right one."""
    subject = (dict(record.headers).get("ce_subject") or b"").decode(errors="replace").partition("/")[2]
    names = {(record.key or b"").decode(errors="replace"), subject}
    return {name for name in names if name and name[0] != "\0"}  # markers of transactions begin with \0
