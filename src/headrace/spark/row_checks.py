"""Checks of records that parse: a record with an implausible time, or one that failed before, is an error.

Both are checked in bulk. Planner processes import this module too, so it does not import numpy at the top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from headrace.spark.errors import BadOption
from headrace.spark.options import read_duration_s

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark import SparkContext

    from headrace.spark.options import Options

EVENT_TIME: Final = "eventTime"
MAX_AHEAD: Final = "maxAhead"
FAILED: Final = "headrace.failed"
"""The local property of the driver's thread with the records of a batch to skip."""
UNLIMITED: Final = "unlimited"
DEFAULT_MAX_AHEAD: Final = "1d"

_NO_LIMIT_US: Final = (1 << 63) - 1
_LAST_US: Final = 253_402_300_800_000_000
"""The end of the year 9999: later times of records are limited to it."""

FailedOffsets = Mapping[str, Mapping[str, Mapping[str, str]]]
"""The reason why a record is an error, by topic, partition and offset."""


class RowCheck(Protocol):
    """Finds records that are errors."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the records that it needs."""

    def verify(self, value_type: pa.DataType) -> None:
        """Raise `BadOption` if it does not fit values of this type."""

    def reasons(self, records: pa.RecordBatch, values: pa.Array) -> dict[int, str]:
        """The reasons of records that are errors, by their row; `values` are the parsed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeGuard:
    """An event time is plausible from 1970 on, and up to `max_ahead_us` after the time of its record.

    One record far in the future would move the watermark there, and all later records would be late. The time
    is compared with the record's own timestamp, which brokers keep within an hour of their clock
    (`message.timestamp.after.max.ms`), not with the clock of the reader: so the result does not depend on
    when a record is read. A record without a timestamp (−1) is not checked.
    """

    column: str
    max_ahead_us: int

    @classmethod
    def from_options(cls, options: Options) -> Self | None:
        """The guard that the options describe; None without an event time, or without a limit."""
        column = options.text(EVENT_TIME)
        ahead = (options.text(MAX_AHEAD) or DEFAULT_MAX_AHEAD).strip()
        if column is None and options.text(MAX_AHEAD) is not None:
            raise BadOption(f"{MAX_AHEAD} bounds event times: name their field by {EVENT_TIME}")
        if column is None or ahead.lower() == UNLIMITED:
            return None
        return cls(column=column, max_ahead_us=round(read_duration_s(MAX_AHEAD, ahead) * 1_000_000))

    @property
    def columns(self) -> tuple[str, ...]:
        """The time of the record."""
        return ("timestamp",)

    def verify(self, value_type: pa.DataType) -> None:
        """Refuse a field that does not exist, or is not a timestamp."""
        index = value_type.get_field_index(self.column)
        if index < 0 or str(value_type.field(index).type) != "timestamp[us, tz=UTC]":
            raise BadOption(
                f"{EVENT_TIME} is {self.column!r}: name a field of the values that is a timestamp"
            )

    def reasons(self, records: pa.RecordBatch, values: pa.Array) -> dict[int, str]:
        """The event times that are not plausible."""
        import numpy as np

        times = values.field(self.column)
        at, recorded = _numbers(times), _numbers(records.column("timestamp"))
        limits = np.where(recorded < 0, _NO_LIMIT_US, np.minimum(recorded, _LAST_US) + self.max_ahead_us)
        strange = (at < 0) | (at > limits)
        if not strange.any():
            return {}
        if times.null_count or values.null_count:
            strange &= _is_valid(times) & _is_valid(values)
        return {
            int(place): self._reason(int(at[place]), int(recorded[place]))
            for place in np.flatnonzero(strange)
        }

    def _reason(self, at_us: int, recorded_us: int) -> str:
        if at_us < 0:
            return f"{self.column}: {_text(at_us)} is before 1970"
        ahead = f"{self.max_ahead_us / 1_000_000:g} seconds (max_ahead)"
        return f"{self.column}: {_text(at_us)} is more than {ahead} after the record's {_text(recorded_us)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRecords:
    """Records that a job could not process: they are errors, with the reason."""

    offsets: FailedOffsets

    def publish(self, context: SparkContext) -> None:
        """Publish the records to skip to the tasks that this thread starts afterwards."""
        context.setLocalProperty(FAILED, json.dumps(self.offsets) if self.offsets else "")

    @classmethod
    def of_task(cls) -> Self | None:
        """The records that the current task has to skip, or None."""
        from pyspark import TaskContext

        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(FAILED)
        return cls(offsets=json.loads(text)) if text else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The partition and offset of the record."""
        return ("topic", "partition", "offset")

    def verify(self, value_type: pa.DataType) -> None:
        """Values of every type may fail."""

    def reasons(self, records: pa.RecordBatch, values: pa.Array) -> dict[int, str]:  # noqa: ARG002
        """The records that are among the failed ones."""
        import numpy as np

        offsets = records.column("offset").to_numpy()
        found: dict[int, str] = {}
        for topic, partitions in self.offsets.items():
            for partition, failed in partitions.items():
                wanted = np.array([int(offset) for offset in failed], np.int64)
                for place in np.flatnonzero(np.isin(offsets, wanted)):
                    if (records["topic"][place].as_py(), str(records["partition"][place])) == (
                        topic,
                        partition,
                    ):
                        found[int(place)] = failed[str(offsets[place])]
        return found


def _numbers(times: pa.Array) -> NDArray[np.int64]:
    """Microseconds since 1970; the value of a null has no meaning."""
    import numpy as np

    data = times.buffers()[1]
    if data is None or not len(times):
        return np.zeros(len(times), np.int64)
    return np.frombuffer(data, np.int64, len(times), times.offset * 8)


def _is_valid(array: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[Any] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _text(time_us: int) -> str:
    import numpy as np

    return f"{np.datetime64(time_us, 'us')}Z"
