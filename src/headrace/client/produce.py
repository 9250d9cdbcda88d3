"""Finished record batches into their partitions, several requests at a time.

    producer = BatchProducer(cluster)
    producer.send(TopicPartition("orders", 0), batch)
    producer.flush()

Batches of one partition are stored in the order in which they were sent, each in a request after the other.
A batch that carries a producer id and a sequence is stored once, however often it has to be repeated, and its
order survives every failure. One without them may be stored twice when a connection breaks before the answer,
and may then follow its successors: at least once.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.error_codes import FENCED, PRODUCE_RETRIABLE
from headrace.client.errors import BrokerUnreachable, Fenced, RequestRefused
from headrace.client.produce_messages import (
    ADDING_VERSION,
    API_KEY,
    VERSION,
    Stored,
    pack_produce,
    read_stored,
)
from headrace.client.retry import attempts
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace.client.address import Address
    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection
    from headrace.client.partition import TopicPartition
    from headrace.protocol.compression import Bytes

REQUEST_BYTES: Final = 1 << 20
"""Batches of different partitions travel together up to this size."""
WRITE_TIMEOUT_MS: Final = 30_000


class UnansweredWrites(HeadraceError):
    """A producer was asked to write without waiting for answers."""


class Sending(NamedTuple):
    """A batch that is not yet known to be stored; numbers tell the order in which they were sent."""

    number: int
    partition: TopicPartition
    batch: Bytes


class Flight(NamedTuple):
    """A request on its way: at most one batch of each partition."""

    connection: Connection
    ticket: int
    sendings: dict[TopicPartition, Sending]


class BatchProducer:
    """A writer of batches that someone else has built; after an error it is of no use any more.

    `acks` is −1 for all replicas that are in sync, or 1 for the leader alone. With a `transactional_id` the
    batches are those of its open transaction, stamped with its identity, and their partitions were added; or
    the writes add them, with `adding`. A refusal in `passing` goes away: the batch is sent again.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str | None = None,
        acks: int = -1,
        in_flight: int = 5,
        adding: bool = False,
        passing: Collection[ErrorCode] = PRODUCE_RETRIABLE,
    ) -> None:
        if acks not in (-1, 1):
            raise UnansweredWrites(
                f"acks={acks} is not possible here: write with acks=-1 (all replicas in sync) "
                "or acks=1 (the leader), so that a write that failed is noticed"
            )
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._acks = acks
        self._in_flight = in_flight
        self._version = ADDING_VERSION if adding else VERSION
        self._passing = passing
        self._numbers = itertools.count()
        self._gathered: dict[TopicPartition, Sending] = {}
        self._gathered_bytes = 0
        self._flights: deque[Flight] = deque()
        self._failed: list[Sending] = []
        self._fault: BrokerUnreachable | RequestRefused | None = None
        self._begun: set[TopicPartition] = set()
        self._offsets: dict[TopicPartition, int] = {}

    def send(self, partition: TopicPartition, batch: Bytes) -> None:
        """Take a batch; it leaves with others, and is to stay unchanged until the next `flush` returns."""
        if partition in self._gathered or self._gathered_bytes + len(batch) > REQUEST_BYTES:
            self._depart()
        self._gathered[partition] = Sending(next(self._numbers), partition, batch)
        self._gathered_bytes += len(batch)

    def flush(self) -> dict[TopicPartition, int]:
        """The offset of the first batch that each partition got since the last flush; all are stored.

        The offset is −1 where the broker only says that it has had the batch before.
        """
        self._depart()
        self._land_all()
        if self._failed:
            self._recover()
        offsets, self._offsets = self._offsets, {}
        return offsets

    def _depart(self) -> None:
        """Send what was gathered as soon as fewer than the allowed requests are on their way."""
        sendings, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        self._await_first_batches(sendings)
        while len(self._flights) >= self._in_flight:
            self._land()
        if self._failed:
            self._recover()
        self._send(sendings)

    def _await_first_batches(self, partitions: Iterable[TopicPartition]) -> None:
        """Return when no partition of these waits for the answer to its first batch.

        A partition that has not seen a producer takes any sequence as its first one: were the first batch
        refused and the second one stored, the first could never follow. And the first batch is the one that
        meets a new topic, whose leader may not know yet that it leads.
        """
        while any(
            partition not in self._begun and self._is_on_its_way(partition) for partition in partitions
        ):
            self._land()

    def _is_on_its_way(self, partition: TopicPartition) -> bool:
        return any(partition in flight.sendings for flight in self._flights)

    def _send(self, sendings: dict[TopicPartition, Sending]) -> None:
        """One request to each leader; what cannot be sent counts as failed."""
        by_leader: dict[Address, dict[TopicPartition, Sending]] = {}
        try:
            for partition, sending in sendings.items():
                by_leader.setdefault(self._cluster.leader_address(partition), {})[partition] = sending
        except (BrokerUnreachable, RequestRefused) as fault:
            if isinstance(fault, RequestRefused) and fault.code not in PRODUCE_RETRIABLE:
                raise
            self._fail(list(sendings.values()), fault)
            return
        for address, group in by_leader.items():
            try:
                self._post(address, group)
            except BrokerUnreachable as fault:
                self._fail(list(group.values()), fault)

    def _post(self, address: Address, group: dict[TopicPartition, Sending]) -> None:
        body = pack_produce(
            {partition: sending.batch for partition, sending in group.items()},
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=WRITE_TIMEOUT_MS,
        )
        connection = self._cluster.connection(address)
        self._flights.append(Flight(connection, connection.post(API_KEY, self._version, body), group))

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    def _land(self) -> None:
        """Take the answer to the oldest request."""
        flight = self._flights.popleft()
        try:
            answers = read_stored(flight.connection.collect(flight.ticket))
        except BrokerUnreachable as fault:
            self._fail(list(flight.sendings.values()), fault)
            return
        for stored in answers:
            self._judge(stored, flight.sendings[stored.partition])

    def _judge(self, stored: Stored, sending: Sending) -> None:
        partition, code, base_offset, message = stored
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self._begun.add(partition)
            self._offsets.setdefault(partition, base_offset)
            return
        refusal = RequestRefused(f"store a batch in {partition}", code, message)
        if code in self._passing or self._follows_a_failure(code, sending):
            self._fail([sending], refusal)
            return
        self._forget_flights()
        if code in FENCED:
            raise Fenced(
                f"a batch for {partition} was refused: its writer "
                f"({self._transactional_id or 'an idempotent producer'}) was replaced by a newer one, or its "
                "transaction has ended. Nothing of it counts; stop this writer."
            ) from refusal
        raise refusal

    def _follows_a_failure(self, code: ErrorCode, sending: Sending) -> bool:
        return code is ErrorCode.out_of_order_sequence_number and any(
            failed.partition == sending.partition and failed.number < sending.number
            for failed in self._failed
        )

    def _fail(self, sendings: list[Sending], fault: BrokerUnreachable | RequestRefused) -> None:
        self._failed += sendings
        self._fault = fault

    def _recover(self) -> None:
        """Return when all that failed is stored: for each partition one batch after the other."""
        self._land_all()
        while self._failed:
            self._retry_until_some_succeed()

    def _retry_until_some_succeed(self) -> None:
        for _ in attempts(self._cluster.timeout_s):
            before = len(self._failed)
            self._cluster.refresh()
            self._send(self._take_first_failed())
            self._land_all()
            if len(self._failed) < before:
                return
        assert self._fault is not None
        raise self._fault

    def _take_first_failed(self) -> dict[TopicPartition, Sending]:
        first: dict[TopicPartition, Sending] = {}
        for sending in sorted(self._failed):
            first.setdefault(sending.partition, sending)
        taken = {sending.number for sending in first.values()}
        self._failed = [sending for sending in self._failed if sending.number not in taken]
        return first

    def _forget_flights(self) -> None:
        for flight in self._flights:
            flight.connection.forget(flight.ticket)
        self._flights.clear()
