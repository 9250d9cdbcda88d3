"""Where reading begins and where it ends: earliest, latest, positions, or times.

A bound is what the user said; resolving it asks the brokers and gives one offset for each partition. As in
Spark's Kafka source, `startingTimestamp` wins over `startingOffsetsByTimestamp`, and that over
`startingOffsets`; the same holds for the ending.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.spark.errors import BadOption
from headrace.spark.positions import Positions, read_positions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.partition import TopicPartition
    from headrace.spark.options import Options

WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One side of what is read."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST, or nothing."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_when_too_late: bool = False
    """What becomes of a time after the last record: the end of the partition, or an error."""

    @classmethod
    def starting(cls, options: Options, *, default: str) -> Self:
        """Where reading begins."""
        choices = {"error": False, "latest": True}
        lenient = options.choice("startingOffsetsByTimestampStrategy", choices, default="error")
        return cls._of(options, "starting", default=default, lenient=lenient)

    @classmethod
    def ending(cls, options: Options) -> Self:
        """Where a batch read ends; a time after the last record means the end."""
        bound = cls._of(options, "ending", default="latest", lenient=True)
        if bound.everywhere == EARLIEST or EARLIEST in bound.offsets.values():
            raise BadOption(f"{bound.option} cannot be earliest (-2): nothing lies before the first record")
        return bound

    @classmethod
    def _of(cls, options: Options, side: str, *, default: str, lenient: bool) -> Self:
        by_time, by_times, by_offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
        time_ms = options.number(by_time, at_least=0)
        if time_ms is not None:
            return cls(option=by_time, time_ms=time_ms, latest_when_too_late=lenient)
        times = options.text(by_times)
        if times is not None:
            times_ms = read_positions(by_times, times)
            return cls(option=by_times, times_ms=times_ms, latest_when_too_late=lenient)
        text = (options.text(by_offsets) or default).strip()
        if text.lower() in WORDS:
            return cls(option=by_offsets, everywhere=WORDS[text.lower()])
        return cls(option=by_offsets, offsets=read_positions(by_offsets, text))

    def is_latest(self) -> bool:
        """Whether it is the end of some partition, which is no place to begin a batch read at."""
        return self.everywhere == LATEST or LATEST in self.offsets.values()

    def resolve(
        self, cluster: Cluster, partitions: Collection[TopicPartition], *, read_committed: bool
    ) -> Positions:
        """One offset for each of `partitions`."""
        wanted = self._wanted(partitions)
        if self.time_ms is not None or self.times_ms:
            return self._resolve_times(cluster, wanted, read_committed=read_committed)
        asked = {partition: offset for partition, offset in wanted.items() if offset < 0}
        answered = list_offsets(cluster, asked, read_committed=read_committed) if asked else {}
        return wanted | answered

    def _wanted(self, partitions: Collection[TopicPartition]) -> Positions:
        everywhere = self.everywhere if self.time_ms is None else self.time_ms
        if everywhere is not None:
            return dict.fromkeys(partitions, everywhere)
        chosen = self.offsets or self.times_ms
        unknown, left_out = set(chosen) - set(partitions), set(partitions) - set(chosen)
        if unknown or left_out:
            what = f"names {_list(unknown)}, not read here" if unknown else f"leaves out {_list(left_out)}"
            raise BadOption(
                f"{self.option} {what}: name every partition that is read, with -2 for its beginning "
                "and -1 for its end"
            )
        return dict(chosen)

    def _resolve_times(self, cluster: Cluster, times_ms: Positions, *, read_committed: bool) -> Positions:
        found = list_offsets(cluster, times_ms, read_committed=read_committed)
        too_late = [partition for partition, offset in found.items() if offset < 0]
        if too_late and not self.latest_when_too_late:
            raise BadOption(
                f"{self.option}: no record of {_list(too_late)} is as late as the time asked for. "
                "Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        ends = dict.fromkeys(too_late, LATEST)
        return found | (list_offsets(cluster, ends, read_committed=read_committed) if ends else {})


def _list(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(f"{partition.topic}-{partition.partition}" for partition in sorted(partitions))
