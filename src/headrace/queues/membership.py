"""Membership in a share group: heartbeats in a background thread."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.errors import COORDINATOR_RETRIABLE, BrokerUnreachable, RequestRefused, retry
from headrace.client.share_groups import send_share_heartbeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.share_groups import HeartbeatResult, TopicIdPartition

log = logging.getLogger(__name__)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
RETRY_S: Final = 0.2
RESPONSE_TIMEOUT_S: Final = 3.0
JOIN_TIMEOUT_S: Final = 30.0
"""Long enough for Apache Kafka to create internal topics for the first share group."""
REJOIN_ERRORS: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
"""Errors after which a member rejoins with the same id."""


class ShareGroupMembership:
    """A member of a share group, from its first heartbeat until `leave`."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        self.id = str(uuid.uuid4())
        self.assignment: frozenset[TopicIdPartition] = frozenset()
        self.fault: RequestRefused | None = None
        """The error with which the coordinator rejected the member."""
        # Short: `leave` waits for a heartbeat in flight, also if its broker is unreachable.
        self._cluster = Cluster.of(bootstrap, timeout_s=RESPONSE_TIMEOUT_S)
        self._group = group
        self._topics = tuple(topics)
        self._epoch = JOIN_EPOCH
        self._interval_s = 5.0
        self._stop = threading.Event()
        try:
            retry(
                self._heartbeat,
                timeout_s=JOIN_TIMEOUT_S,
                retriable=COORDINATOR_RETRIABLE,
                on_error=lambda _: self._cluster.refresh(),
            )
        except BaseException:
            self._cluster.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"queue-{group}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop the heartbeats and leave the group."""
        self._stop.set()
        self._thread.join()
        try:
            send_share_heartbeat(self._cluster, self._group, self.id, LEAVE_EPOCH)
        except (BrokerUnreachable, RequestRefused) as fault:
            log.info("A member of group %s could not leave it: %s", self._group, fault)
        self._cluster.close()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            try:
                self._heartbeat()
                pause_s = self._interval_s
            except BrokerUnreachable:
                self._cluster.refresh()
                pause_s = RETRY_S
            except RequestRefused as refusal:
                if refusal.code not in COORDINATOR_RETRIABLE:
                    self.fault = refusal
                    return
                self._cluster.refresh()
                pause_s = RETRY_S

    def _heartbeat(self) -> None:
        response = self._send_heartbeat()
        if response.error in REJOIN_ERRORS:
            self._epoch = JOIN_EPOCH
            response = self._send_heartbeat()
        if response.error is not ErrorCode.none:
            raise RequestRefused(f"join the share group {self._group!r}", response.error, response.message)
        self._epoch = response.epoch
        self._interval_s = response.interval_ms / 1000
        if response.assignment is not None:
            self.assignment = response.assignment

    def _send_heartbeat(self) -> HeartbeatResult:
        topics = self._topics if self._epoch == JOIN_EPOCH else None
        return send_share_heartbeat(self._cluster, self._group, self.id, self._epoch, topics)
