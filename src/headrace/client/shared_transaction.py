"""One transaction that many writers fill and one process ends.

    transaction = SharedTransaction.open(cluster, "headrace.revenue")
    transaction.add(partitions)
    ...  # tasks write batches stamped with transaction.identity, each to partitions of its own
    transaction.commit_offsets("revenue", {TopicPartition("orders", 0): 1200})
    transaction.commit()

Every transaction has an epoch of its own. A writer that comes late, with the identity of a transaction that
has ended, is refused by the brokers; with a kept epoch its batch would slip into the next transaction. So
`identity` is to be read anew for each transaction, and sequences start at 0 on every partition.

Within a transaction a broker recognises a repeated batch by its sequence, not by its bytes. A task that is
run again and computes other rows would lose them without a word: a failed task must end the transaction.

Partitions are added by the owner before anyone writes: the implicit way of KIP-890 makes many writers wait
for one another. What a broker refuses for a moment only (an end whose markers are being written, a
coordinator that loads) is asked again after some milliseconds.
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

from headrace.client.error_codes import COORDINATOR_RETRIABLE, FENCED, LEADER_CHANGED
from headrace.client.errors import Fenced, RequestRefused
from headrace.client.partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection


class ProducerIdentity(NamedTuple):
    """What is stamped into every batch of a writer: sequences start at 0 for each identity and partition."""

    producer_id: int
    epoch: int


NOBODY: Final = ProducerIdentity(-1, -1)


def new_identity(cluster: Cluster) -> ProducerIdentity:
    """An identity of one's own, for a writer without transactions whose batches are to be stored once."""

    def ask() -> ProducerIdentity:
        return init_producer(cluster.any(), None, NOBODY, timeout_ms=60_000)

    return cluster.persist(ask, COORDINATOR_RETRIABLE)


def init_producer(
    connection: Connection, transactional_id: str | None, identity: ProducerIdentity, *, timeout_ms: int
) -> ProducerIdentity:
    """The identity to write with from now on; `identity` is the one until now, where there is one."""
    request = InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.epoch),
    )
    response = connection.ask(request, InitProducerIdResponse)
    if response.error_code is not ErrorCode.none:
        raise RequestRefused("give out a producer id", response.error_code)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


__all__ = ["Fenced", "ProducerIdentity", "SharedTransaction"]

TIMEOUT_MS: Final = 60_000
LONGEST_PAUSE_S: Final = 0.02
"""Coordinators are ready again within milliseconds, and a whole micro-batch waits for them."""

Result = TypeVar("Result")


class SharedTransaction:
    """The owner's side of the transactions of one transactional id: one after the other, each begun by `add`.

    For one thread. After an error other than `Fenced` the outcome of what was asked may be unknown: open the
    transactional id again, which aborts what was not committed.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, identity: ProducerIdentity, *, timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._id = TransactionalId(transactional_id)
        self._identity = identity
        self._timeout_ms = timeout_ms
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._begun = False

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> Self:
        """The transactional id, taken over: whoever had it is fenced, and what they left open is aborted.

        When it returns, the outcome of every earlier transaction is decided and visible to readers. The
        broker aborts a transaction that stays open for longer than `timeout_ms`, and fences its owner.
        """
        opened = cls(cluster, transactional_id, NOBODY, timeout_ms=timeout_ms)
        opened._renew()
        return opened

    @property
    def transactional_id(self) -> str:
        """The name under which the transactions run."""
        return self._id

    @property
    def identity(self) -> ProducerIdentity:
        """What the batches of the current transaction are stamped with."""
        return self._identity

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Return when these partitions may be written to in this transaction; the first ones begin it."""
        new = sorted(set(partitions) - self._added)
        if new:
            self._begun = True  # also when the answer gets lost
            self._persist(partial(self._add, new))
            self._added.update(new)

    @property
    def writes_add(self) -> bool:
        """Whether writes may add their partitions by themselves (`BatchProducer(adding=True)`).

        For a single writer: several that begin at once would make one another wait.
        """
        return self._cluster.transaction_coordinator(self._id).serves(ProduceRequest)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Be about to write to these partitions; where writes do not add them, they are added here."""
        if not self.writes_add:
            self.add(partitions)
            return
        self._begun = True
        self._added.update(partitions)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Make these the positions of `group` when the transaction commits."""
        if not offsets:
            return
        if group not in self._groups:
            self._begun = True
            self._persist(partial(self._add_group, group))
            self._groups.add(group)
        self._persist(partial(self._commit_offsets, group, offsets, metadata))

    def commit(self) -> None:
        """Return when everything written in this transaction is decided to count."""
        self._end(committed=True)

    def abort(self) -> None:
        """Return when it is decided that nothing written in this transaction counts."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        if not self._begun:
            return  # nothing was written, and nobody can write before the next `add`
        successor = self._persist(partial(self._ask_end, committed=committed))
        if successor.producer_id < 0 or successor == self._identity:
            self._renew()
        else:
            self._identity = successor
        self._added.clear()
        self._groups.clear()
        self._begun = False

    def _renew(self) -> None:
        """Take a new epoch; the coordinator gives it once the markers of the last transaction are written."""
        self._identity = self._persist(self._ask_identity)

    def _ask_identity(self) -> ProducerIdentity:
        coordinator = self._cluster.transaction_coordinator(self._id)
        try:
            return init_producer(coordinator, self._id, self._identity, timeout_ms=self._timeout_ms)
        except RequestRefused as refusal:
            raise self._explained(refusal) from refusal

    def _ask_end(self, *, committed: bool) -> ProducerIdentity:
        """With whom it goes on, as far as the coordinator says so.

        An answer that was lost is asked for again with the old identity; coordinators know that case.
        """
        coordinator = self._cluster.transaction_coordinator(self._id)
        fields = {**self._fields(), "committed": committed}
        act = f"{'commit' if committed else 'abort'} the transaction"
        if not coordinator.serves(EndTxnRequest):
            older = coordinator.ask(OlderEndTxnRequest(**fields), OlderEndTxnResponse)
            self._check(act, older.error_code)
            return NOBODY
        response = coordinator.ask(EndTxnRequest(**fields), EndTxnResponse)
        self._check(act, response.error_code)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._cluster.leader_address(
                partition
            )  # one that does not exist is known here, and not waited for
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
        response = self._cluster.transaction_coordinator(self._id).ask(request, AddPartitionsToTxnResponse)
        codes = [
            (TopicPartition(topic.name, result.partition_index), result.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        # One partition that is refused keeps the others from being tried: the cause goes first.
        for partition, code in sorted(codes, key=lambda item: item[1] is ErrorCode.operation_not_attempted):
            self._check(f"add {partition} to the transaction", code)

    def _add_group(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(**self._fields(), group_id=GroupId(group))
        coordinator = self._cluster.transaction_coordinator(self._id)
        response = coordinator.ask(request, AddOffsetsToTxnResponse)
        self._check(f"add the group {group!r} to the transaction", response.error_code)

    def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        topics = tuple(
            TxnOffsetCommitRequestTopic(name=TopicName(name), partitions=_positions(items, metadata))
            for name, items in by_topic(offsets.items()).items()
        )
        request = TxnOffsetCommitRequest(
            **self._fields(), group_id=GroupId(group), member_id="", topics=topics
        )
        response = self._cluster.group_coordinator(group).ask(request, TxnOffsetCommitResponse)
        for topic in response.topics:
            for answer in topic.partitions:
                where = TopicPartition(topic.name, answer.partition_index)
                self._check(f"take the position of {group!r} in {where}", answer.error_code)

    def _fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "producer_id": ProducerId(self._identity.producer_id),
            "producer_epoch": i16(self._identity.epoch),
        }

    def _check(self, act: str, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            raise self._explained(RequestRefused(act, code))

    def _explained(self, refusal: RequestRefused) -> RequestRefused | Fenced:
        if refusal.code not in FENCED:
            return refusal
        return Fenced(
            f"the transactional id {self._id!r} is no longer ours: another process has opened it, or a "
            f"transaction stayed open for longer than {self._timeout_ms / 1000:g} s and the broker ended it "
            f"({refusal.code.name}). Nothing of the current transaction counts."
        )

    def _persist(self, act: Callable[[], Result]) -> Result:
        return self._cluster.persist(
            act, COORDINATOR_RETRIABLE | LEADER_CHANGED, longest_pause_s=LONGEST_PAUSE_S
        )


def _positions(items: list[tuple[int, int]], metadata: str) -> tuple[TxnOffsetCommitRequestPartition, ...]:
    return tuple(
        TxnOffsetCommitRequestPartition(
            partition_index=i32(index), committed_offset=i64(offset), committed_metadata=metadata
        )
        for index, offset in items
    )
