"""A transaction with many writers, which one process begins and commits.

    transaction = SharedTransaction.open(cluster, "headrace.revenue")
    transaction.add(partitions)
    ...  # tasks write batches with transaction.identity, each to other partitions
    transaction.commit_offsets("revenue", {TopicPartition("orders", 0): 1200})
    transaction.commit()

Every transaction has a new epoch, so that brokers refuse late batches of an earlier one. Read `identity`
again for each transaction; sequences start at 0 in every partition.

Within a transaction a broker recognizes a duplicate batch by its sequence, not by its content. A task that
runs again and computes other rows would lose them: abort the transaction when a task fails.

The owner adds partitions before the writers start: with the implicit way of KIP-890 concurrent writers wait
for one another. Transient errors (markers that are being written, a coordinator that is loading) are retried.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from kio.schema.add_offsets_to_txn.v3 import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kio.schema.add_partitions_to_txn.v3 import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnTopic
from kio.schema.end_txn.v3 import EndTxnRequest as OlderEndTxnRequest
from kio.schema.end_txn.v3 import EndTxnResponse as OlderEndTxnResponse
from kio.schema.end_txn.v5 import EndTxnRequest, EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.produce.v12 import ProduceRequest
from kio.schema.txn_offset_commit.v3 import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kio.schema.txn_offset_commit.v3.request import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta, i64

from headrace.client.errors import (
    COORDINATOR_RETRIABLE,
    FENCED,
    LEADER_CHANGED,
    ProducerFenced,
    RequestRefused,
)
from headrace.client.partition import TopicPartition, by_topic
from headrace.client.produce import BatchProducer
from headrace.protocol.batch import SEQUENCE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection


TIMEOUT_MS: Final = 60_000
MAX_BACKOFF_S: Final = 0.02
"""Coordinators are ready again within milliseconds, and a whole micro-batch waits for them."""

Result = TypeVar("Result")


class ProducerIdentity(NamedTuple):
    """Producer id and epoch of a batch; sequences start at 0 for each identity and partition."""

    producer_id: int
    epoch: int


NO_IDENTITY: Final = ProducerIdentity(-1, -1)


def new_identity(cluster: Cluster) -> ProducerIdentity:
    """A new identity for an idempotent producer without transactions."""

    def request_identity() -> ProducerIdentity:
        return init_producer_id(cluster.any(), None, NO_IDENTITY, timeout_ms=TIMEOUT_MS)

    return cluster.retry(request_identity, COORDINATOR_RETRIABLE)


def init_producer_id(
    connection: Connection, transactional_id: str | None, identity: ProducerIdentity, *, timeout_ms: int
) -> ProducerIdentity:
    """Request a new identity (InitProducerId); `identity` is the current one, if there is one."""
    request = InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.epoch),
    )
    response = connection.request(request, InitProducerIdResponse)
    if response.error_code is not ErrorCode.none:
        raise RequestRefused("assign a producer id", response.error_code)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


class SharedTransaction:
    """The transactions of one transactional id, one after another, each begun by `add`.

    For one thread. After an error other than `ProducerFenced` the outcome may be unknown: open the
    transactional id again, which aborts an open transaction.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, identity: ProducerIdentity, *, timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._id = TransactionalId(transactional_id)
        self._identity = identity
        self._timeout_ms = timeout_ms
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._begun = False

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> Self:
        """Take over the transactional id: fences its previous owner and aborts its open transaction.

        Returns when every earlier transaction is complete and visible to readers. The broker aborts a
        transaction that is open for longer than `timeout_ms`, and fences its owner.
        """
        transaction = cls(cluster, transactional_id, NO_IDENTITY, timeout_ms=timeout_ms)
        transaction._bump_epoch()
        return transaction

    @property
    def transactional_id(self) -> str:
        """The transactional id."""
        return self._id

    @property
    def identity(self) -> ProducerIdentity:
        """The identity for the batches of the current transaction."""
        return self._identity

    def next_sequence(self, partition: TopicPartition, count: int) -> int:
        """Reserve the sequences of `count` records for the current identity; returns the first one."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + count) % SEQUENCE_LIMIT
        return sequence

    def producer(self) -> BatchProducer:
        """A producer for the only writer of the transactions, which calls `begin` before it writes."""
        return BatchProducer(
            self._cluster,
            transactional_id=self._id,
            adds_partitions=self._coordinator.serves(ProduceRequest),
        )

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction; the first ones begin it."""
        new = sorted(set(partitions) - self._added)
        if new:
            self._begun = True  # also if the response is lost
            self._retry(partial(self._add, new))
            self._added.update(new)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Prepare to write to these partitions with `producer`; adds them unless the writes do."""
        if not self._coordinator.serves(ProduceRequest):
            self.add(partitions)
            return
        self._begun = True
        self._added.update(partitions)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets of a group with the transaction."""
        if not offsets:
            return
        if group not in self._groups:
            self._begun = True
            self._retry(partial(self._add_group, group))
            self._groups.add(group)
        self._retry(partial(self._commit_offsets, group, offsets, metadata))

    def commit(self) -> None:
        """Commit the transaction."""
        self._end(committed=True)

    def abort(self) -> None:
        """Abort the transaction."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        if not self._begun:
            return  # nothing was added, so nothing was written
        identity = self._retry(partial(self._request_end, committed=committed))
        if identity.producer_id < 0 or identity == self._identity:
            self._bump_epoch()
        else:
            self._set_identity(identity)
        self._added.clear()
        self._groups.clear()
        self._begun = False

    def _bump_epoch(self) -> None:
        """Request a new epoch, which is assigned once the markers of the last transaction are written."""
        self._set_identity(self._retry(self._request_identity))

    def _set_identity(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._sequences.clear()

    @property
    def _coordinator(self) -> Connection:
        return self._cluster.transaction_coordinator(self._id)

    def _request_identity(self) -> ProducerIdentity:
        try:
            return init_producer_id(self._coordinator, self._id, self._identity, timeout_ms=self._timeout_ms)
        except RequestRefused as refusal:
            raise self._explain(refusal) from refusal

    def _request_end(self, *, committed: bool) -> ProducerIdentity:
        """End the transaction; returns the identity for the next one, if the broker assigns it here.

        After a lost response the request is repeated with the old identity, which coordinators accept.
        """
        coordinator = self._coordinator
        fields = {**self._fields(), "committed": committed}
        act = f"{'commit' if committed else 'abort'} the transaction"
        if not coordinator.serves(EndTxnRequest):
            older = coordinator.request(OlderEndTxnRequest(**fields), OlderEndTxnResponse)
            self._check(act, older.error_code)
            return NO_IDENTITY
        response = coordinator.request(EndTxnRequest(**fields), EndTxnResponse)
        self._check(act, response.error_code)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._cluster.leader_address(partition)  # raises at once for one that does not exist
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=ProducerId(self._identity.producer_id),
            v3_and_below_producer_epoch=i16(self._identity.epoch),
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(
                    name=TopicName(name), partitions=tuple(i32(index) for index, _ in items)
                )
                for name, items in by_topic((partition, None) for partition in partitions).items()
            ),
        )
        response = self._cluster.transaction_coordinator(self._id).request(
            request, AddPartitionsToTxnResponse
        )
        codes = [
            (TopicPartition(topic.name, result.partition_index), result.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        # After one refused partition the others are not attempted: report the cause.
        for partition, code in sorted(codes, key=lambda item: item[1] is ErrorCode.operation_not_attempted):
            self._check(f"add {partition} to the transaction", code)

    def _add_group(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(**self._fields(), group_id=GroupId(group))
        response = self._coordinator.request(request, AddOffsetsToTxnResponse)
        self._check(f"add the group {group!r} to the transaction", response.error_code)

    def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        topics = tuple(
            TxnOffsetCommitRequestTopic(name=TopicName(name), partitions=_committed(items, metadata))
            for name, items in by_topic(offsets.items()).items()
        )
        request = TxnOffsetCommitRequest(
            **self._fields(), group_id=GroupId(group), member_id="", topics=topics
        )
        response = self._cluster.group_coordinator(group).request(request, TxnOffsetCommitResponse)
        for topic in response.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                self._check(f"commit the offset of {group!r} in {partition}", result.error_code)

    def _fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "producer_id": ProducerId(self._identity.producer_id),
            "producer_epoch": i16(self._identity.epoch),
        }

    def _check(self, act: str, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            raise self._explain(RequestRefused(act, code))

    def _explain(self, refusal: RequestRefused) -> RequestRefused | ProducerFenced:
        if refusal.code not in FENCED:
            return refusal
        return ProducerFenced(
            f"the transactional id {self._id!r} was fenced: another process has opened it, or a "
            f"transaction was open for longer than {self._timeout_ms / 1000:g} s and the broker aborted it "
            f"({refusal.code.name}). The current transaction is aborted."
        )

    def _retry(self, call: Callable[[], Result]) -> Result:
        return self._cluster.retry(call, COORDINATOR_RETRIABLE | LEADER_CHANGED, max_backoff_s=MAX_BACKOFF_S)


def _committed(items: list[tuple[int, int]], metadata: str) -> tuple[TxnOffsetCommitRequestPartition, ...]:
    return tuple(
        TxnOffsetCommitRequestPartition(
            partition_index=i32(index), committed_offset=i64(offset), committed_metadata=metadata
        )
        for index, offset in items
    )
