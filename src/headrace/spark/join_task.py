"""The task of a keyed stage that joins two streams: its state is segments, and its output may be long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.spark.keyed_stage import KeyedTask
from headrace.spark.keyed_state import PartitionState, local_folder
from headrace.spark.segment_state import SegmentStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark import TaskContext

    from headrace.columns.joining import JoinResult
    from headrace.spark.keyed_stage import BatchTimes

NAME: Final = "join_behind_by_ms_"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTask(KeyedTask):
    """A task whose kernel is a `JoinKernel`."""

    @property
    def __name__(self) -> str:
        """What the plan of a query shows: by it is known how far behind the watermark rows come out."""
        behind_us = self.behind_us + max(self.kernel.before_us, self.kernel.after_us)
        return f"{NAME}{behind_us // 1000 + 1}"

    def _outcome(self, rows: pa.Table, batch: BatchTimes, context: TaskContext) -> Iterable[pa.Table]:
        folder, number = local_folder(self.folder), context.partitionId()
        store = SegmentStore(folder, number)
        kept = store.read(batch.batch)
        joined: JoinResult = self.kernel(rows, kept, batch.times.behind(self.behind_us))
        if joined.kept is None:
            store.keep(batch.batch)
        else:
            store.write(batch.batch, joined.kept)
        PartitionState(folder, number).write_late(batch.batch, joined.late)
        return joined.output
