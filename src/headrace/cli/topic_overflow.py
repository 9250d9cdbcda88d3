"""How full a topic with a bound is, as a Headrace broker tells it among the topic's settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.cli.output import print_line, print_table, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.cli.topic_admin import TopicConfig

STATUS: Final = "headrace.overflow.status"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOverflow:
    """One partition: what counts against its bound, and what became of records since the broker started."""

    partition: int
    backlog_records: int
    backlog_bytes: int
    full_percent: float
    slowest_group: str | None
    dropped_records: int
    refused_records: int
    timed_out_records: int
    waiting_batches: int


def read_overflow(configs: Iterable[TopicConfig]) -> tuple[PartitionOverflow, ...]:
    """What the broker says about the topic's bound; nothing when it has none, or is Apache Kafka's."""
    text = next((config.value for config in configs if config.name == STATUS), None)
    if text is None:
        return ()
    known = PartitionOverflow.__dataclass_fields__
    return tuple(
        PartitionOverflow(**{name: value for name, value in found.items() if name in known})
        for found in json.loads(text)
    )


def print_overflow(partitions: Sequence[PartitionOverflow]) -> None:
    """The table of a topic with a bound."""
    print_line("")
    rows = [
        (
            part.partition,
            f"{part.full_percent:g} %",
            part.backlog_records,
            size_text(part.backlog_bytes),
            part.slowest_group,
            part.dropped_records,
            part.refused_records,
            part.waiting_batches,
            part.timed_out_records,
        )
        for part in partitions
    ]
    print_table(
        [
            "partition",
            "full",
            "backlog",
            "size",
            "slowest group",
            "dropped",
            "refused",
            "waiting",
            "timed out",
        ],
        rows,
    )
