"""The share session of a consumer with one broker: fetches and acknowledgments."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.errors import RequestRefused
from headrace.client.share_groups import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_VERSION,
    Acknowledgment,
    pack_share_acknowledge,
    pack_share_fetch,
    read_share_acknowledge,
    read_share_fetch,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.connection import Connection
    from headrace.client.share_groups import SharePartitionResponse, ShareResponse, TopicIdPartition

log = logging.getLogger(__name__)

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
MAX_BYTES: Final = 8 << 20
SESSION_LOST: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})


class BrokerShareSession:
    """A share session with one broker. Requests are pipelined: they do not wait for earlier responses."""

    def __init__(self, connection: Connection, group: str, member: str) -> None:
        self.connection = connection
        self._group = group
        self._member = member
        self._epoch = INITIAL_EPOCH
        self._partitions: frozenset[TopicIdPartition] = frozenset()
        self._acknowledgments: dict[TopicIdPartition, dict[int, Acknowledgment]] = {}
        self._pending: deque[int] = deque()

    def add_acknowledgment(
        self, partition: TopicIdPartition, offset: int, kind: int, delay_ms: int = 0
    ) -> None:
        """Send an acknowledgment with the next request."""
        self._acknowledgments.setdefault(partition, {})[offset] = Acknowledgment(kind, delay_ms)

    def acknowledge(self) -> None:
        """Send all acknowledgments; the response is read with the next fetch."""
        if self._acknowledgments and self._epoch != INITIAL_EPOCH:
            body = pack_share_acknowledge(
                self._group, self._member, self._next_epoch(), self._acknowledgments
            )
            self._pending.append(self.connection.send(SHARE_ACKNOWLEDGE, SHARE_VERSION, body))
        self._acknowledgments = {}

    def send_fetch(
        self, partitions: frozenset[TopicIdPartition], *, max_records: int, max_wait_ms: int
    ) -> int:
        """Send a fetch of these partitions with all acknowledgments; returns its correlation id."""
        if self._epoch == INITIAL_EPOCH:
            self._acknowledgments = {}
            self._partitions = frozenset()
        gone = [
            partition for partition in self._partitions - partitions if partition not in self._acknowledgments
        ]
        body = pack_share_fetch(
            self._group,
            self._member,
            self._next_epoch(),
            max_wait_ms=max_wait_ms,
            max_bytes=MAX_BYTES,
            max_records=max_records,
            partitions=partitions - self._partitions,
            acknowledged=self._acknowledgments,
            forgotten=gone,
        )
        self._partitions, self._acknowledgments = partitions, {}
        return self.connection.send(SHARE_FETCH, SHARE_VERSION, body)

    def receive_fetch(self, correlation_id: int) -> tuple[SharePartitionResponse, ...]:
        """The response of a fetch; empty if the session was lost: the next request opens a new one."""
        self._read_pending()
        response = read_share_fetch(self.connection.receive(correlation_id))
        self._check(response)
        return response.partitions

    def flush(self) -> None:
        """Send all acknowledgments, and wait for the responses."""
        self.acknowledge()
        self._read_pending()

    def _read_pending(self) -> None:
        while self._pending:
            self._check(read_share_acknowledge(self.connection.receive(self._pending.popleft())))

    def close(self) -> None:
        """Close the session; the broker releases all acquired messages."""
        if self._epoch != INITIAL_EPOCH:
            self._epoch = FINAL_EPOCH
            body = pack_share_acknowledge(self._group, self._member, FINAL_EPOCH, self._acknowledgments)
            self.connection.receive(self.connection.send(SHARE_ACKNOWLEDGE, SHARE_VERSION, body))

    def _next_epoch(self) -> int:
        epoch = self._epoch
        self._epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return epoch

    def _check(self, response: ShareResponse) -> None:
        if response.error in SESSION_LOST:
            self._epoch = INITIAL_EPOCH
        elif response.error is not ErrorCode.none:
            raise RequestRefused(f"fetch messages for the share group {self._group!r}", response.error)
        _log_failed_acknowledgments(response.partitions)


def _log_failed_acknowledgments(partitions: Iterable[SharePartitionResponse]) -> None:
    for response in partitions:
        if response.acknowledge_error is not ErrorCode.none:
            log.warning(
                "Partition %d: an acknowledgment was rejected (%s) and the message is delivered again. "
                "Increase share.record.lock.duration.ms of the group, or renew the message.",
                response.partition[1],
                response.acknowledge_error.name,
            )
