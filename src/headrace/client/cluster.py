"""The brokers of a cluster, found from a few addresses: who they are, and which of them coordinates what."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.metadata.v9 import MetadataRequest, MetadataResponse
from kio.static.primitive import i8

from headrace.client.address import Address
from headrace.client.connection import Connection
from headrace.client.errors import BrokerUnreachable, RequestRefused
from headrace.client.retry import attempts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

TRANSACTION: Final = i8(1)
"""What FindCoordinator calls a transactional id."""

PASSING: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)
"""Refusals that go away by themselves: the request is worth repeating."""


class Cluster:
    """Connections to the brokers of one cluster, opened when they are first needed."""

    def __init__(self, bootstrap: Sequence[Address], *, timeout_s: float = 10.0) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._connections: dict[Address, Connection] = {}
        self._open = ExitStack()

    def connection(self, address: Address) -> Connection:
        """The connection to the broker at `address`."""
        if address not in self._connections:
            opened = Connection.open(address.host, address.port, timeout_s=self._timeout_s)
            self._connections[address] = self._open.enter_context(opened)
        return self._connections[address]

    def any(self) -> Connection:
        """A connection to the first of the bootstrap addresses that answers."""
        fault = BrokerUnreachable("no address of a broker was given")
        for address in self._bootstrap:
            try:
                return self.connection(address)
            except BrokerUnreachable as refusal:
                fault = refusal
        raise fault

    def brokers(self) -> tuple[Address, ...]:
        """The addresses of all brokers, as the cluster itself names them."""
        request = MetadataRequest(
            topics=(),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        response = self.any().ask(request, MetadataResponse)
        return tuple(Address(host=broker.host, port=broker.port) for broker in response.brokers)

    def transaction_coordinator(self, transactional_id: str) -> Connection:
        """A connection to the broker that coordinates `transactional_id`."""
        request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
        for _ in attempts(self._timeout_s):
            response = self.any().ask(request, FindCoordinatorResponse)
            if response.error_code not in PASSING:
                break
        if response.error_code is not ErrorCode.none:
            act = f"name the coordinator of {transactional_id!r}"
            raise RequestRefused(act, response.error_code, response.error_message)
        return self.connection(Address(host=response.host, port=response.port))

    def close(self) -> None:
        """Hang up on every broker."""
        self._connections.clear()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
