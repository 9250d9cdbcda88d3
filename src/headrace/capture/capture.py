"""The life of one capture: preflight checks, snapshots, streaming, and retries after lost connections."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.capture.metrics import CaptureMetrics
from headrace.capture.offsets import create_offsets_topic, read_offsets
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.settings import MIB
from headrace.capture.source import (
    LARGEST_RECORD,
    CaptureError,
    CaptureStopped,
    DatabaseUnavailable,
    SlotInUse,
)
from headrace.capture.writer import TransactionalChangeWriter
from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, ProducerFenced, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import CaptureSource
    from headrace.tracing import Tracer

BROKER_TIMEOUT_S: Final = 15.0
"""After this long without a response from the broker, the capture reconnects."""
NOT_RETRYABLE: Final = frozenset(
    {
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_config,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_record,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.message_too_large,
        ErrorCode.policy_violation,
        ErrorCode.record_list_too_large,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_version,
    }
)
"""Errors that the same request would get again."""
REMEDIES: Final = {
    ErrorCode.message_too_large: "Raise the topic's limit: `headrace topic alter TOPIC --config "
    f"max.message.bytes={LARGEST_RECORD + MIB}`.",
    ErrorCode.record_list_too_large: "Raise the topic's limit (`segment.bytes`).",
    ErrorCode.invalid_record: "If the topic is compacted, it rejects records without a key: until the "
    "capture has passed it, `headrace topic alter TOPIC --config cleanup.policy=delete`.",
    ErrorCode.topic_authorization_failed: "Allow the capture's user to create and write the topic.",
    ErrorCode.transactional_id_authorization_failed: "Allow the capture's user to write under its "
    "transactional id.",
}
"""How to continue with the change that was rejected."""
INITIAL_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 5.0


class Capture:
    """One capture, run by one thread; `stop` may be called from any other."""

    def __init__(
        self,
        settings: CaptureSettings,
        bootstrap: str,
        *,
        on_message: Callable[[str], None] = lambda _: None,
        on_progress: Callable[[str, int, int], None] = lambda *_: None,
        on_ready: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._settings = settings
        self._bootstrap = bootstrap
        self._on_message = on_message
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._stopped = threading.Event()
        self._sessions = 0
        """The number of sessions that reached both the database and the broker."""
        self.metrics = CaptureMetrics(name=settings.name)

    @property
    def records(self) -> int:
        """The number of committed records, including those of snapshots."""
        return self.metrics.records

    def stop(self) -> None:
        """Request a clean stop: complete transactions are committed and confirmed to the database."""
        self._stopped.set()

    def run(self) -> None:
        """Capture until stopped; after the first session, lost connections are retried with backoff."""
        try:
            self._run_sessions()
        finally:
            if self._tracer is not None:
                self._tracer.flush()

    def _run_sessions(self) -> None:
        backoff_s = INITIAL_BACKOFF_S
        while not self._stopped.is_set():
            before = self._sessions
            try:
                self._run_session()
            except CaptureStopped as stopped:
                self._on_message(str(stopped))
                return
            except (DatabaseUnavailable, BrokerUnreachable, RequestRefused, SlotInUse) as fault:
                if isinstance(fault, RequestRefused) and fault.code in NOT_RETRYABLE:
                    remedy = REMEDIES.get(fault.code, "Remove the cause.")
                    raise CaptureError(
                        f"{fault}. {remedy} The replication slot is kept: start the capture again, and it "
                        "continues with this change."
                    ) from fault
                if not self._sessions:
                    raise
                backoff_s = (
                    INITIAL_BACKOFF_S if self._sessions > before else min(backoff_s * 2, MAX_BACKOFF_S)
                )
                self._on_message(f"{fault} Retrying in {backoff_s:g} s.")
                self._stopped.wait(backoff_s)
            except ProducerFenced as fault:
                raise CaptureError(
                    f"another capture named {self._settings.name!r} has fenced this one: this one stops, "
                    "and its last transaction is aborted."
                ) from fault
            else:
                return

    def _run_session(self) -> None:
        """One connection to the database and one to the broker, until either is lost."""
        source = PostgresSource(
            self._settings,
            on_message=self._on_message,
            on_progress=self._progress,
            stopped=self._stopped.is_set,
            metrics=self.metrics,
            tracer=self._tracer,
        )
        try:
            source.preflight()
            with Cluster.of(self._bootstrap, timeout_s=BROKER_TIMEOUT_S) as cluster:
                create_offsets_topic(cluster)
                writer = TransactionalChangeWriter(
                    cluster, self._bootstrap, self._settings, source.on_committed, self.metrics
                )
                try:
                    self._capture(source, writer)
                except (BrokerUnreachable, ProducerFenced):
                    raise  # the next process that opens the transactional id aborts the transaction
                except BaseException:
                    writer.close()
                    raise
                else:
                    writer.close()
        finally:
            self.metrics.is_connected = self.metrics.is_taking_snapshot = False
            source.close()

    def _progress(self, table: str, rows: int, total: int) -> None:
        self.metrics.snapshots[table] = (rows, total)
        self._on_progress(table, rows, total)

    def _capture(self, source: CaptureSource, writer: TransactionalChangeWriter) -> None:
        known = read_offsets(self._bootstrap)
        name = self._settings.name
        if name in known.stopped and self._sessions:
            raise CaptureStopped(f"the capture {name!r} was requested to stop")
        offset = source.prepare(known.captures.get(name))
        # The offset is committed before the slot is created: a slot without an offset belongs to another
        # capture.
        writer.start_from(offset, clear_stop_request=name in known.stopped)
        if not offset.position:
            writer.start_from(source.create_slot(offset))
        self._sessions += 1
        source.create_topics(writer.offset, writer)
        writer.commit_topics()
        self._on_ready()
        self.metrics.is_connected = self.metrics.is_taking_snapshot = True
        source.snapshot(writer.offset, writer)
        self.metrics.is_taking_snapshot = False
        if not self._stopped.is_set():
            source.stream_changes(writer.offset, writer)
