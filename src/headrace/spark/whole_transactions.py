"""Where batches may end in the topics of captured tables: where all of them hold whole transactions.

A capture writes rows and its own offset in one Kafka transaction. The offset says where the transaction ends
in every partition. But a transaction becomes visible partition by partition, and others follow between two
requests. So a batch ends where the newest offset says, and only when all partitions are visible up to there.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from headrace.capture.offsets import STOP, TOPIC, CaptureOffset
from headrace.client.errors import UnknownPartition
from headrace.client.fetch import PartitionReader
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.record_decoder import RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.spark.offsets import Positions
    from headrace.spark.options import ClusterConnection

CAPTURES: Final = TopicPartition(TOPIC, 0)
SEARCH_S: Final = 1.0
"""How often the topic of captures is looked for while there is none."""

log = logging.getLogger("headrace.spark")


class WholeTransactions:
    """The offsets of captures, as far as they are about some topics."""

    def __init__(self, link: ClusterConnection, topics: Collection[str]) -> None:
        self._link = link
        self._topics = frozenset(topics)
        self._position: int | None = None
        self._searched_at = float("-inf")
        self._offsets: dict[str, CaptureOffset] = {}

    def refresh(self) -> None:
        """Read the newest offsets of all captures: before the ends of topics are looked up."""
        cluster = self._link.cluster()
        if self._position is None and not self._is_there():
            return
        try:
            if self._position is None:
                self._position = list_offsets(cluster, {CAPTURES: EARLIEST})[CAPTURES]
            end = list_offsets(cluster, {CAPTURES: LATEST})[CAPTURES]
        except UnknownPartition:
            self._position, self._offsets = None, {}
            return
        if end < self._position:  # the topic was made again
            self._position, self._offsets = None, {}
            return
        for key, value in self._records(self._position, end):
            self._add(key, value)
        self._position = end

    def ends(self, begun: Positions, latest: Positions) -> Positions | None:
        """Where a batch may end if the topics are visible up to `latest`; None to wait for more."""
        known = self._captured()
        limited = dict(latest)
        for offset in known.values():
            ends = self._ends_of(offset)
            if not self._is_consistent(offset) or not self._are_visible(ends, latest):
                return None
            for partition, end in ends.items():
                visible = latest.get(partition)
                if visible is not None and visible > end:
                    limited[partition] = min(visible, max(begun.get(partition, 0), end))
        # A capture that has begun to write a topic since would not have limited it.
        before = {topic for offset in known.values() for topic in offset.ends}
        self.refresh()
        after = {topic for offset in self._captured().values() for topic in offset.ends}
        return limited if after & self._topics <= before else None

    def _is_there(self) -> bool:
        """Whether the topic of captures exists; a look-up of offsets would wait for it."""
        if time.monotonic() - self._searched_at < SEARCH_S:
            return False
        self._searched_at = time.monotonic()
        return bool(self._link.cluster().topics([TOPIC]))

    def _captured(self) -> dict[str, CaptureOffset]:
        """The captures that write some of the topics."""
        return {name: each for name, each in self._offsets.items() if self._topics & each.ends.keys()}

    def _is_consistent(self, offset: CaptureOffset) -> bool:
        """Whether the tables are as they were at one moment, and not each as at its snapshot."""
        snapshots = {table.topic: table.position for table in offset.tables.values()}
        topics = self._topics & offset.ends.keys()
        return topics <= snapshots.keys() and all(snapshots[topic] <= offset.position for topic in topics)

    def _ends_of(self, offset: CaptureOffset) -> Positions:
        return {
            TopicPartition(topic, int(number)): end
            for topic in self._topics & offset.ends.keys()
            for number, end in offset.ends[topic].items()
        }

    def _are_visible(self, ends: Positions, latest: Positions) -> bool:
        behind = {partition: end for partition, end in ends.items() if latest.get(partition, end) < end}
        if not behind:
            return True
        written = list_offsets(self._link.cluster(), dict.fromkeys(behind, LATEST), read_committed=False)
        # The last offset is that of a marker, which may not be written yet.
        shorter = [partition for partition, end in behind.items() if written[partition] < end - 1]
        for partition in shorter:
            log.debug("%s is shorter than its capture has written: it was made again", partition)
        return len(shorter) == len(behind)

    def _records(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        if start >= end:
            return
        decoder = RecordDecoder(CAPTURES, start, end, columns=("key", "value"))
        for fetched in PartitionReader(self._link.cluster(), CAPTURES, start, end):
            for part in decoder.readable_parts(fetched.batches, fetched.aborted):
                columns = part.to_pydict()  # type: ignore[union-attr]  # a capture writes readable batches
                yield from zip(columns["key"], columns["value"], strict=True)

    def _add(self, key: bytes, value: bytes | None) -> None:
        name = key.decode()
        if name.endswith(STOP):
            return
        if value is None:
            self._offsets.pop(name, None)
        else:
            self._offsets[name] = CaptureOffset.from_bytes(value)
