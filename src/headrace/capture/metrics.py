"""The metrics of captures, with the meaning of Debezium's streaming and snapshot metrics."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.metrics.families import Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.metrics.families import Scrape

_CAPTURE: Final = ("capture",)
_TABLE: Final = ("capture", "table")

CONNECTED = Metric(
    name="headrace_capture_connected",
    kind=Kind.GAUGE,
    doc="1 while the capture is connected to its database and to the broker (Debezium: `Connected`).",
    labels=_CAPTURE,
)
EVENTS = Metric(
    name="headrace_capture_events_total",
    kind=Kind.COUNTER,
    doc="Committed records, with those of snapshots (Debezium: `TotalNumberOfEventsSeen`).",
    labels=_CAPTURE,
)
TRANSACTIONS = Metric(
    name="headrace_capture_committed_transactions_total",
    kind=Kind.COUNTER,
    doc="Captured transactions of the database (Debezium: `NumberOfCommittedTransactions`).",
    labels=_CAPTURE,
)
BEHIND = Metric(
    name="headrace_capture_behind_source_seconds",
    kind=Kind.GAUGE,
    doc="Time from the last captured commit in the database to its commit in the topics "
    "(Debezium: `MilliSecondsBehindSource`).",
    labels=_CAPTURE,
)
LAG = Metric(
    name="headrace_capture_lag_bytes",
    kind=Kind.GAUGE,
    doc="WAL after the position that the capture has confirmed.",
    labels=_CAPTURE,
)
RETAINED = Metric(
    name="headrace_capture_slot_retained_wal_bytes",
    kind=Kind.GAUGE,
    doc="WAL that the replication slot retains on the disk of the database.",
    labels=_CAPTURE,
)
SNAPSHOT_ROWS = Metric(
    name="headrace_capture_snapshot_scanned_rows",
    kind=Kind.GAUGE,
    doc="Rows of the table that the snapshot has read (Debezium: `RowsScanned`).",
    labels=_TABLE,
)
SNAPSHOT_TOTAL = Metric(
    name="headrace_capture_snapshot_table_rows",
    kind=Kind.GAUGE,
    doc="Rows that the snapshot of the table will read, as far as the database knows.",
    labels=_TABLE,
)
SNAPSHOT_RUNNING = Metric(
    name="headrace_capture_snapshot_running",
    kind=Kind.GAUGE,
    doc="1 while snapshots are taken (Debezium: `SnapshotRunning`).",
    labels=_CAPTURE,
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric of a capture, in the order of the documentation."""


@dataclass(slots=True, kw_only=True)
class CaptureMetrics:
    """The counts of one capture: its thread writes them, and others may read them at any time."""

    name: str
    is_connected: bool = False
    is_taking_snapshot: bool = False
    records: int = 0
    transactions: int = 0
    behind_ms: int | None = None
    lag_bytes: int | None = None
    retained_wal_bytes: int | None = None
    snapshots: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows read and rows expected, by table."""

    def committed(self, *, records: int, transactions: int, newest_ms: int) -> None:
        """Count a commit; `newest_ms` is when the last of its changes was committed in the database."""
        self.records += records
        self.transactions += transactions
        if transactions:
            self.behind_ms = max(time.time_ns() // 1_000_000 - newest_ms, 0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> CaptureMetrics:
        """Read what `to_dict` returned."""
        return CaptureMetrics(**document)


def add_samples(scrape: Scrape, metrics: CaptureMetrics) -> None:
    """Add the samples of one capture."""
    name = metrics.name
    scrape.add(CONNECTED, metrics.is_connected, name)
    scrape.add(EVENTS, metrics.records, name)
    scrape.add(TRANSACTIONS, metrics.transactions, name)
    scrape.add(SNAPSHOT_RUNNING, metrics.is_taking_snapshot, name)
    if metrics.behind_ms is not None:
        scrape.add(BEHIND, metrics.behind_ms / 1000, name)
    if metrics.lag_bytes is not None:
        scrape.add(LAG, metrics.lag_bytes, name)
    if metrics.retained_wal_bytes is not None:
        scrape.add(RETAINED, metrics.retained_wal_bytes, name)
    for table, (rows, total) in list(metrics.snapshots.items()):
        scrape.add(SNAPSHOT_ROWS, rows, name, table)
        scrape.add(SNAPSHOT_TOTAL, total, name, table)


@dataclass(frozen=True, slots=True)
class CaptureMetricsSource:
    """The page of a process that runs one capture."""

    metrics: CaptureMetrics

    def scrape(self, scrape: Scrape) -> None:
        """Add all samples."""
        scrape.announce(*METRICS)
        add_samples(scrape, self.metrics)

    def faults(self) -> list[str]:
        """Nothing: a capture that cannot go on ends."""
        return []

    def pending(self) -> list[str]:
        """Why changes are not captured now."""
        if not self.metrics.is_connected:
            return ["the capture is not connected to its database and the broker"]
        return []
