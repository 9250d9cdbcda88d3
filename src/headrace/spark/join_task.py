"""The task of a keyed stage that joins two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.spark.keyed_stage import KeyedTask
from headrace.state.files import state_files
from headrace.state.joins import JoinOperatorState

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark import TaskContext

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
        files = state_files(self.folder).child(str(context.partitionId()))
        state = JoinOperatorState(files=files, kernel=self.kernel)
        return state.advance(batch.batch, rows, batch.times.behind(self.behind_us))
