"""Which partition each row goes to."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.columns.encoding_kernels import BY_KEY, STICKY_PARTITION, STICKY_ROWS, place_rows
from headrace.columns.errors import UnfitRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace.columns.blobs import Blobs


class Placement:
    """The partitions of some topics, numbered through as slots, and the choice of one for each row.

    A column `partition` decides; where it is null or missing, the key does, by the hash of the Java client.
    Rows without a key stay together.
    """

    def __init__(self, partition_counts: Mapping[str, int], topic: str | None) -> None:
        self._names = list(partition_counts)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        counts = np.array(list(partition_counts.values()), np.int64)
        if (counts < 1).any():
            raise UnfitRows(f"a topic to write has no partitions: {dict(partition_counts)}")
        self._first_slots: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._topic = None if topic is None else self._number(topic)
        self._sticky = np.zeros((STICKY_ROWS, len(counts)), np.int64)
        # Tasks begin at different partitions, or the first one would get the rows of every small batch.
        self._sticky[STICKY_PARTITION] = [random.randrange(count) for count in counts.tolist()]

    @property
    def slot_count(self) -> int:
        """How many partitions there are in all topics."""
        return int(self._first_slots[-1])

    def partition(self, slot: int) -> tuple[str, int]:
        """The topic and the number of the partition that a slot stands for."""
        topic = int(np.searchsorted(self._first_slots, slot, side="right")) - 1
        return self._names[topic], slot - int(self._first_slots[topic])

    def slots(self, rows: pa.RecordBatch, key: Blobs, bare: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each row, or `UnfitRows` when a row names a topic or partition that there is not."""
        topics, partitions = self._topics(rows), _partitions(rows)
        slots = np.empty(rows.num_rows, np.int64)
        refused = place_rows(key, topics, partitions, self._first_slots, bare, self._sticky, slots)
        if refused >= 0:
            topic = int(topics[refused])
            count = self._first_slots[topic + 1] - self._first_slots[topic]
            raise UnfitRows(
                f"a row is meant for partition {partitions[refused]} of topic {self._names[topic]}, which "
                f"has the partitions 0 to {count - 1}: correct the column partition, or leave it null "
                "for the key to decide"
            )
        return slots

    def _topics(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """The number of each row's topic."""
        if self._topic is not None:
            return np.full(rows.num_rows, self._topic, np.int64)
        if "topic" not in rows.schema.names:
            raise UnfitRows("rows have no column topic and no topic was named: name one, or add the column")
        column = rows.column("topic").cast(pa.string()).dictionary_encode()
        if column.null_count:
            raise UnfitRows("the topic of a row is null: give each row a topic, or name one for all of them")
        numbers = np.array([self._number(str(name)) for name in column.dictionary.to_pylist()], np.int64)
        codes: NDArray[np.int32] = column.indices.to_numpy()
        return numbers[codes]

    def _number(self, topic: str) -> int:
        if topic not in self._numbers:
            known = ", ".join(sorted(self._names)) or "none"
            raise UnfitRows(
                f"rows are meant for the topic {topic}, which is not among those to be written: {known}"
            )
        return self._numbers[topic]


def _partitions(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The partition that each row asks for, `BY_KEY` where it asks for none."""
    if "partition" not in rows.schema.names:
        return np.full(rows.num_rows, BY_KEY, np.int64)
    column = rows.column("partition")
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise UnfitRows(f"the column partition is of type {column.type}: make it an integer column")
    wanted = column.cast(pa.int64()).fill_null(BY_KEY)
    return np.array(wanted.to_numpy(zero_copy_only=False), np.int64)
