"""Being in a share group: heartbeats from a thread of their own, and what they bring."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.codes import PASSING
from headrace.client.errors import BrokerUnreachable, RequestRefused
from headrace.client.retry import persist
from headrace.client.share_groups import beat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.share_groups import Heartbeat
    from headrace.client.share_messages import Place

log = logging.getLogger(__name__)

JOIN: Final = 0
LEAVE: Final = -1
RETRY_S: Final = 0.2
ANSWER_S: Final = 3.0
JOIN_S: Final = 30.0
"""How long a coordinator may take to come into being: Apache Kafka makes topics for the first share group."""
OUTSIDE: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
"""Refusals after which a member joins anew, with the id that it has."""


class Membership:
    """A member of a share group, from its first heartbeat until `leave`."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        self.id = str(uuid.uuid4())
        self.assignment: frozenset[Place] = frozenset()
        self.fault: RequestRefused | None = None
        """Why the coordinator does not want the member any more."""
        # Short: whoever leaves waits for a heartbeat under way, also when its broker is gone.
        self._cluster = Cluster.of(bootstrap, timeout_s=ANSWER_S)
        self._group = group
        self._topics = tuple(topics)
        self._epoch = JOIN
        self._interval_s = 5.0
        self._stop = threading.Event()
        persist(self._beat, within_s=JOIN_S, passing=PASSING, between=lambda _: self._cluster.refresh())
        self._thread = threading.Thread(target=self._run, name=f"queue-{group}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop, and tell the coordinator."""
        self._stop.set()
        self._thread.join()
        try:
            beat(self._cluster, self._group, self.id, LEAVE)
        except (BrokerUnreachable, RequestRefused) as fault:
            log.info("%s was left without a word: %s", self._group, fault)
        self._cluster.close()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            try:
                self._beat()
                pause_s = self._interval_s
            except BrokerUnreachable:
                self._cluster.refresh()
                pause_s = RETRY_S
            except RequestRefused as refusal:
                if refusal.code not in PASSING:
                    self.fault = refusal
                    return
                self._cluster.refresh()
                pause_s = RETRY_S

    def _beat(self) -> None:
        answer = self._ask()
        if answer.error in OUTSIDE:
            self._epoch = JOIN
            answer = self._ask()
        if answer.error is not ErrorCode.none:
            raise RequestRefused(f"let us into the share group {self._group!r}", answer.error, answer.message)
        self._epoch = answer.epoch
        self._interval_s = answer.interval_ms / 1000
        if answer.assignment is not None:
            self.assignment = answer.assignment

    def _ask(self) -> Heartbeat:
        topics = self._topics if self._epoch == JOIN else None
        return beat(self._cluster, self._group, self.id, self._epoch, topics)
