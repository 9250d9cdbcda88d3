"""The brokers of a cluster, found from a few addresses: who they are, who leads and who coordinates what.

    with Cluster.of("127.0.0.1:9092") as cluster:
        cluster.topics(["orders"])["orders"].partitions

What was learned is kept until `refresh`, and connections are opened when they are first needed, and again
when they broke. A cluster is for one thread at a time: its connections refuse a second one that uses them
meanwhile. In a process that was forked off it starts anew: sockets are not shared with the parent.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.metadata.v10 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v10.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8

from headrace.client.address import Address, read_addresses
from headrace.client.connection import Connection
from headrace.client.error_codes import COORDINATOR_RETRIABLE, LEADER_CHANGED, RETRIABLE_IN_PLACE
from headrace.client.errors import BrokerUnreachable, RequestRefused, UnknownPartition
from headrace.client.partition import TopicPartition
from headrace.client.retry import LONGEST_PAUSE_S, Result, attempts, persist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from types import TracebackType
    from uuid import UUID

    from kio.schema.metadata.v10.response import MetadataResponseTopic

    from headrace.errors import HeadraceError

GROUP: Final = i8(0)
"""What FindCoordinator calls a consumer group."""
TRANSACTION: Final = i8(1)
"""What FindCoordinator calls a transactional id."""

NEWS_S: Final = 3.0
"""How long a partition may be unknown before it counts as missing: brokers learn of new topics one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the cluster describes it."""

    name: str
    partitions: tuple[int, ...]
    internal: bool
    topic_id: str | None
    """What tells a topic from one of the same name that was deleted before it, as Kafka's tools write it."""


class Cluster:
    """Connections to the brokers of one cluster, opened when they are first needed."""

    def __init__(
        self, bootstrap: Sequence[Address], *, client_id: str = "headrace", timeout_s: float = 10.0
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._process = os.getpid()
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    @classmethod
    def of(cls, bootstrap: str, *, client_id: str = "headrace", timeout_s: float = 30.0) -> Self:
        """The cluster that is found at these addresses: `host:port`, several with commas between."""
        return cls(read_addresses(bootstrap), client_id=client_id, timeout_s=timeout_s)

    @property
    def timeout_s(self) -> float:
        """How long an answer, and a change of leaders or coordinators, is waited for."""
        return self._timeout_s

    def connection(self, address: Address) -> Connection:
        """An open connection to the broker at `address`."""
        self._leave_parent()
        known = self._connections.get(address)
        if known is None or not known.is_open:
            known = Connection.open(
                address.host, address.port, client_id=self._client_id, timeout_s=self._timeout_s
            )
            self._connections[address] = known
        return known

    def any(self) -> Connection:
        """A connection to the first broker that answers: those of the bootstrap, then those learned of."""
        fault = BrokerUnreachable("no address of a broker was given")
        for address in dict.fromkeys((*self._bootstrap, *self._brokers.values())):
            try:
                return self.connection(address)
            except BrokerUnreachable as refusal:
                fault = refusal
        raise fault

    def brokers(self) -> tuple[Address, ...]:
        """The addresses of all brokers, as the cluster itself names them."""
        self._learn(())
        return tuple(self._brokers.values())

    def controller(self) -> Connection:
        """A connection to the broker that takes administrative requests."""
        response = self._learn(())
        address = self._brokers.get(response.controller_id)
        return self.any() if address is None else self.connection(address)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """The topics of these names, or all of them; one that does not exist is absent."""
        wanted = None if names is None else tuple(names)
        response = self.persist(partial(self._describe, wanted), LEADER_CHANGED)
        found = (_describe(topic) for topic in response.topics if topic.error_code is ErrorCode.none)
        return {topic.name: topic for topic in sorted(found, key=lambda topic: topic.name)}

    def leader(self, partition: TopicPartition) -> Connection:
        """A connection to the broker that leads `partition`; waits while it has no leader that answers."""
        return self.persist(lambda: self.connection(self.leader_address(partition)), LEADER_CHANGED)

    def leader_address(self, partition: TopicPartition) -> Address:
        """Where the leader of `partition` is found; a partition that has none now is refused."""
        if partition not in self._leaders:
            self._find_leader(partition)
        return self._leaders[partition]

    def group_coordinator(self, group: str) -> Connection:
        """A connection to the broker that coordinates the consumer group `group`."""
        return self._coordinator(GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> Connection:
        """A connection to the broker that coordinates `transactional_id`."""
        return self._coordinator(TRANSACTION, transactional_id)

    def persist(
        self,
        act: Callable[[], Result],
        passing: Collection[ErrorCode],
        *,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> Result:
        """What `act` returns once it succeeds; lost brokers and refusals in `passing` are waited out.

        Before each new attempt leaders and coordinators are looked for again, unless the right one answered.
        """

        def look_again(fault: HeadraceError) -> None:
            if not (isinstance(fault, RequestRefused) and fault.code in RETRIABLE_IN_PLACE):
                self.refresh()

        return persist(
            act,
            within_s=self._timeout_s,
            passing=passing,
            between=look_again,
            longest_pause_s=longest_pause_s,
        )

    def refresh(self) -> None:
        """Forget who leads and who coordinates what, so that it is asked again when it is next needed."""
        self._leaders.clear()
        self._coordinators.clear()

    def close(self) -> None:
        """Hang up on every broker."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _leave_parent(self) -> None:
        # Two processes that read from one socket would take each other's answers. Closing our descriptor
        # leaves the parent's connection as it is.
        if self._process != os.getpid():
            self.close()
            self._process = os.getpid()

    def _find_leader(self, partition: TopicPartition) -> None:
        for _ in attempts(min(NEWS_S, self._timeout_s)):
            topics = self._describe((partition.topic,)).topics
            if any(
                partition.partition == found.partition_index for topic in topics for found in topic.partitions
            ):
                break
        else:
            raise UnknownPartition(partition)
        if partition not in self._leaders:
            raise RequestRefused(f"name the leader of {partition}", ErrorCode.leader_not_available)

    def _describe(self, names: tuple[str, ...] | None) -> MetadataResponse:
        response = self._learn(names)
        for topic in response.topics:
            if topic.error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                raise RequestRefused(f"describe the topic {topic.name!r}", topic.error_code)
        return response

    def _learn(self, names: tuple[str, ...] | None) -> MetadataResponse:
        """What the cluster says about these topics; brokers and leaders are remembered."""
        request = MetadataRequest(
            topics=None
            if names is None
            else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        response = self.any().ask(request, MetadataResponse)
        self._brokers = {
            broker.node_id: Address(host=broker.host, port=broker.port) for broker in response.brokers
        }
        for topic in response.topics:
            self._learn_leaders(topic)
        return response

    def _learn_leaders(self, topic: MetadataResponseTopic) -> None:
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition_index)
            address = self._brokers.get(partition.leader_id)
            if address is None:
                self._leaders.pop(where, None)
            else:
                self._leaders[where] = address

    def _coordinator(self, kind: i8, key: str) -> Connection:
        def connect() -> Connection:
            if (kind, key) not in self._coordinators:
                self._coordinators[kind, key] = self._find_coordinator(kind, key)
            return self.connection(self._coordinators[kind, key])

        return self.persist(connect, COORDINATOR_RETRIABLE)

    def _find_coordinator(self, kind: i8, key: str) -> Address:
        response = self.any().ask(FindCoordinatorRequest(key=key, key_type=kind), FindCoordinatorResponse)
        if response.error_code is not ErrorCode.none:
            act = f"name the coordinator of {key!r}"
            raise RequestRefused(act, response.error_code, response.error_message)
        return Address(host=response.host, port=response.port)


def _describe(topic: MetadataResponseTopic) -> TopicDescription:
    numbers = sorted(partition.partition_index for partition in topic.partitions)
    return TopicDescription(
        name=topic.name,
        partitions=tuple(numbers),
        internal=topic.is_internal,
        topic_id=None if topic.topic_id is None else _id_text(topic.topic_id),
    )


def _id_text(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
