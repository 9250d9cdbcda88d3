"""Connections to the brokers of a cluster, and its metadata: brokers, topics, leaders and coordinators.

    with Cluster.of("127.0.0.1:9092") as cluster:
        cluster.topics(["orders"])["orders"].partitions

Metadata is cached until `refresh`. Connections are opened on first use, and again after they were lost. A
cluster is for one thread at a time: its connections refuse concurrent use. A forked process opens its own
connections.
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

from headrace.client.bootstrap import PLAINTEXT, Address, Bootstrap
from headrace.client.connection import Connection
from headrace.client.errors import (
    COORDINATOR_RETRIABLE,
    LEADER_CHANGED,
    MAX_BACKOFF_S,
    RETRIABLE_IN_PLACE,
    BrokerUnreachable,
    RequestRefused,
    Result,
    UnknownPartition,
    attempts,
    retry,
)
from headrace.client.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from types import TracebackType
    from uuid import UUID

    from kio.schema.metadata.v10.response import MetadataResponseTopic

    from headrace.errors import HeadraceError

GROUP: Final = i8(0)
TRANSACTION: Final = i8(1)

METADATA_DELAY_S: Final = 3.0
"""A partition that is unknown for this long does not exist: brokers learn of new topics one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic in the metadata of the cluster."""

    name: str
    partitions: tuple[int, ...]
    internal: bool
    topic_id: str | None
    """The topic id in the text format of Kafka's tools; a re-created topic has another one."""


class Cluster:
    """Connections to the brokers of one cluster."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        profile: str = PLAINTEXT,
        client_id: str = "headrace",
        timeout_s: float = 10.0,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._profile = profile
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, Address] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    @classmethod
    def of(cls, bootstrap: str, *, client_id: str = "headrace", timeout_s: float = 30.0) -> Self:
        """The cluster at these addresses, such as `kafka-1:9092,kafka-2:9092`.

        `production://kafka-1:9094` connects with the security profile `production`.
        """
        found = Bootstrap.of(bootstrap)
        return cls(found.addresses, profile=found.profile, client_id=client_id, timeout_s=timeout_s)

    @property
    def timeout_s(self) -> float:
        """The longest wait for a response, and for the election of a leader or coordinator."""
        return self._timeout_s

    def connection(self, address: Address) -> Connection:
        """An open connection to the broker at `address`."""
        self._detach_from_parent()
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = Connection.open(
                address.host,
                address.port,
                profile=self._profile,
                client_id=self._client_id,
                timeout_s=self._timeout_s,
            )
            self._connections[address] = connection
        return connection

    def any(self) -> Connection:
        """A connection to the first broker that answers, bootstrap addresses first."""
        error = BrokerUnreachable("no address of a broker was given")
        for address in dict.fromkeys((*self._bootstrap, *self._brokers.values())):
            try:
                return self.connection(address)
            except BrokerUnreachable as unreachable:
                error = unreachable
        raise error

    def brokers(self) -> tuple[Address, ...]:
        """The addresses of all brokers, from the metadata."""
        self._update_metadata(())
        return tuple(self._brokers.values())

    def controller(self) -> Connection:
        """A connection to the controller."""
        response = self._update_metadata(())
        address = self._brokers.get(response.controller_id)
        return self.any() if address is None else self.connection(address)

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Describe these topics, or all; topics that do not exist are left out."""
        wanted = None if names is None else tuple(names)
        response = self.retry(partial(self._describe, wanted), LEADER_CHANGED)
        found = (_describe(topic) for topic in response.topics if topic.error_code is ErrorCode.none)
        return {topic.name: topic for topic in sorted(found, key=lambda topic: topic.name)}

    def leader(self, partition: TopicPartition) -> Connection:
        """A connection to the leader of `partition`; waits for its election."""
        return self.retry(lambda: self.connection(self.leader_address(partition)), LEADER_CHANGED)

    def leader_address(self, partition: TopicPartition) -> Address:
        """The address of the leader of `partition`; raises `RequestRefused` if it has none now."""
        if partition not in self._leaders:
            self._find_leader(partition)
        return self._leaders[partition]

    def group_coordinator(self, group: str) -> Connection:
        """A connection to the coordinator of a group."""
        return self._coordinator(GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> Connection:
        """A connection to the coordinator of a transactional id."""
        return self._coordinator(TRANSACTION, transactional_id)

    def retry(
        self,
        call: Callable[[], Result],
        retriable: Collection[int],
        *,
        max_backoff_s: float = MAX_BACKOFF_S,
    ) -> Result:
        """Return the result of `call`, which is repeated after lost connections and `retriable` error codes.

        The metadata is refreshed before each retry, unless the right broker responded.
        """

        def refresh_metadata(error: HeadraceError) -> None:
            if not (isinstance(error, RequestRefused) and error.code in RETRIABLE_IN_PLACE):
                self.refresh()

        return retry(
            call,
            timeout_s=self._timeout_s,
            retriable=retriable,
            on_error=refresh_metadata,
            max_backoff_s=max_backoff_s,
        )

    def refresh(self) -> None:
        """Discard the cached leaders and coordinators."""
        self._leaders.clear()
        self._coordinators.clear()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _detach_from_parent(self) -> None:
        # A process and its fork must not read from one socket. Closing our descriptor leaves the parent's
        # connection open.
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()

    def _find_leader(self, partition: TopicPartition) -> None:
        for _ in attempts(min(METADATA_DELAY_S, self._timeout_s)):
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
        response = self._update_metadata(names)
        for topic in response.topics:
            if topic.error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
                raise RequestRefused(f"describe the topic {topic.name!r}", topic.error_code)
        return response

    def _update_metadata(self, names: tuple[str, ...] | None) -> MetadataResponse:
        """Request the metadata of these topics, and cache brokers and leaders."""
        request = MetadataRequest(
            topics=None
            if names is None
            else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        response = self.any().request(request, MetadataResponse)
        self._brokers = {
            broker.node_id: Address(host=broker.host, port=broker.port) for broker in response.brokers
        }
        for topic in response.topics:
            self._update_leaders(topic)
        return response

    def _update_leaders(self, topic: MetadataResponseTopic) -> None:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            address = self._brokers.get(partition.leader_id)
            if address is None:
                self._leaders.pop(topic_partition, None)
            else:
                self._leaders[topic_partition] = address

    def _coordinator(self, kind: i8, key: str) -> Connection:
        def connect() -> Connection:
            if (kind, key) not in self._coordinators:
                self._coordinators[kind, key] = self._find_coordinator(kind, key)
            return self.connection(self._coordinators[kind, key])

        return self.retry(connect, COORDINATOR_RETRIABLE)

    def _find_coordinator(self, kind: i8, key: str) -> Address:
        response = self.any().request(FindCoordinatorRequest(key=key, key_type=kind), FindCoordinatorResponse)
        if response.error_code is not ErrorCode.none:
            act = f"name the coordinator of {key!r}"
            raise RequestRefused(act, response.error_code, response.error_message)
        return Address(host=response.host, port=response.port)


def _describe(topic: MetadataResponseTopic) -> TopicMetadata:
    numbers = sorted(partition.partition_index for partition in topic.partitions)
    return TopicMetadata(
        name=topic.name,
        partitions=tuple(numbers),
        internal=topic.is_internal,
        topic_id=None if topic.topic_id is None else _id_text(topic.topic_id),
    )


def _id_text(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
