"""A capture from its start to its end: who writes, how far it was, snapshots, changes, lost connections."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.capture.errors import CaptureError, CaptureStopped, SlotTaken, SourceLost
from headrace.capture.offsets import make_topic, read_progress
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.settings import MIB
from headrace.capture.source import LARGEST_RECORD
from headrace.capture.writer import Writer
from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, Fenced, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import Source

BROKER_S: Final = 15.0
"""How long a broker may be silent before the capture begins again with it."""
PERMANENT: Final = frozenset(
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
"""Refusals that the same request would get again."""
REMEDIES: Final = {
    ErrorCode.message_too_large: "Raise the topic's limit: `headrace topic alter TOPIC --config "
    f"max.message.bytes={LARGEST_RECORD + MIB}`.",
    ErrorCode.record_list_too_large: "Raise the topic's limit (`segment.bytes`).",
    ErrorCode.invalid_record: "If the topic is compacted, it takes no record without a key: until the "
    "capture has passed it, `headrace topic alter TOPIC --config cleanup.policy=delete`.",
    ErrorCode.topic_authorization_failed: "Allow the capture's user to create and write the topic.",
    ErrorCode.transactional_id_authorization_failed: "Allow the capture's user to write under its "
    "transactional id.",
}
"""How to continue with the change that was refused."""
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0


class Capture:
    """One capture, run by one thread; `stop` may come from any other."""

    def __init__(
        self,
        settings: CaptureSettings,
        bootstrap: str,
        *,
        tell: Callable[[str], None] = lambda _: None,
        report: Callable[[str, int, int], None] = lambda *_: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._bootstrap = bootstrap
        self._tell = tell
        self._report = report
        self._ready = ready
        self._stopped = threading.Event()
        self._reached = 0
        """How often the database and the broker were both there."""
        self.records = 0
        """How many were stored, those of snapshots included."""

    def stop(self) -> None:
        """Ask for a clean end: what is whole is stored, and the database told so."""
        self._stopped.set()

    def run(self) -> None:
        """Capture until stopped; a database or broker that goes away is waited for, once all was well."""
        wait_s = FIRST_WAIT_S
        while not self._stopped.is_set():
            before = self._reached
            try:
                self._session()
            except CaptureStopped as stopped:
                self._tell(str(stopped))
                return
            except (SourceLost, BrokerUnreachable, RequestRefused, SlotTaken) as fault:
                if isinstance(fault, RequestRefused) and fault.code in PERMANENT:
                    remedy = REMEDIES.get(fault.code, "Remove the cause.")
                    raise CaptureError(
                        f"{fault}. {remedy} The replication slot is kept: start the capture again, and it "
                        "continues with this change."
                    ) from fault
                if not self._reached:
                    raise
                wait_s = FIRST_WAIT_S if self._reached > before else min(wait_s * 2, LONGEST_WAIT_S)
                self._tell(f"{fault} It is tried again in {wait_s:g} s.")
                self._stopped.wait(wait_s)
            except Fenced as fault:
                raise CaptureError(
                    f"another capture named {self._settings.name!r} has taken over: this one ends, and "
                    "nothing of its last transaction counts."
                ) from fault
            else:
                return

    def _session(self) -> None:
        """One connection to the database and one to the broker, until the first of them is lost."""
        source = PostgresSource(
            self._settings, tell=self._tell, report=self._report, stopped=self._stopped.is_set
        )
        try:
            source.check()
            with Cluster.of(self._bootstrap, timeout_s=BROKER_S) as cluster:
                make_topic(cluster)
                writer = Writer(cluster, self._bootstrap, self._settings, source.on_stored)
                try:
                    self._capture(source, writer)
                except (BrokerUnreachable, Fenced):
                    raise  # the next one to open the transactional id aborts what is open
                except BaseException:
                    writer.close()
                    raise
                else:
                    writer.close()
                finally:
                    self.records += writer.records
        finally:
            source.close()

    def _capture(self, source: Source, writer: Writer) -> None:
        known = read_progress(self._bootstrap)
        name = self._settings.name
        if name in known.stopped and self._reached:
            raise CaptureStopped(f"the capture {name!r} was asked to stop")
        progress = source.prepare(known.captures.get(name))
        # Before there is a slot it is stored that there will be: one that nobody knows is somebody else's.
        writer.begin(progress, forget_stop=name in known.stopped)
        if not progress.position:
            writer.begin(source.begin(progress))
        self._reached += 1
        source.open_topics(writer.progress, writer)
        self._ready()
        source.snapshot(writer.progress, writer)
        if not self._stopped.is_set():
            source.follow(writer.progress, writer)
