"""The connection of a command to a broker, by librdkafka or the raw client, and how its address is found."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.cli.output import RequestFailed
from headrace.client.bootstrap import PLAINTEXT, SILENT, client_config
from headrace.client.errors import BrokerUnreachable, attempts
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from confluent_kafka import KafkaError

    from headrace.cli.librdkafka import AdminClient
    from headrace.client.cluster import Cluster
    from headrace.settings import BrokerAddress


def broker_address(
    option: str | None, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> BrokerAddress:
    """The broker's address: the value of `--broker`, or else from the settings.

    The environment and the current folder are those of the process, unless others are given.
    """
    return Settings.read(environment=environment, folder=folder).broker_or_default(option)


Result = TypeVar("Result")

TIMEOUT_S: Final = 30.0
PROBE_S: Final = 5.0
PATIENCE_S: Final = 5.0

SECURED_HINT: Final = ". If its listener requires TLS or SASL, choose a security profile"
LOST: Final = -156
"""librdkafka's error after a lost connection, when it knows no leader (its code for "no entry")."""
RETRIABLE: Final = frozenset({5, 6, 14, 15, 16, LOST})
"""Retriable errors: no leader, another leader; a coordinator that is loading, unavailable or has moved;
a lost connection."""


class BrokerSession:
    """A connection to one broker or cluster. Clients are imported and opened when they are first used."""

    def __init__(self, address: BrokerAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._admin: AdminClient | None = None
        self._cluster: Cluster | None = None

    def client_config(self, **more: Any) -> dict[str, Any]:
        """The configuration of a librdkafka client; underscores in names stand for dots."""
        settings = {name.replace("_", "."): value for name, value in more.items()}
        common = {
            "client.id": "headrace",
            "logger": SILENT,
            "socket.timeout.ms": int(self.timeout_s * 1000),
        }
        return client_config(str(self.address), {**common, **settings})

    @property
    def admin(self) -> AdminClient:
        """The admin client of librdkafka."""
        if self._admin is None:
            from headrace.cli.librdkafka import AdminClient

            self._admin = AdminClient(self.client_config())
        return self._admin

    @property
    def cluster(self) -> Cluster:
        """The raw client, for what librdkafka does not offer."""
        if self._cluster is None:
            from headrace.client.cluster import Cluster

            self._cluster = Cluster(self.address.addresses, profile=self.address.profile)
        return self._cluster

    def request(self, call: Callable[[], Result], act: str) -> Result:
        """Returns the result of `call`, or raises an error: the broker did not `act`, and why.

        Retriable errors, such as that of a coordinator which is still loading, are retried.
        """
        for _ in attempts(min(self.timeout_s, PATIENCE_S)):
            try:
                with self.translated_errors(act):
                    return call()
            except RequestFailed as refusal:
                fault = refusal
                if refusal.code not in RETRIABLE:
                    break
                if refusal.code == LOST:
                    # An admin client of librdkafka that lost its connection may never find another one.
                    self._admin = None
        raise fault

    def request_one(self, method: str, subject: object, act: str) -> Any:
        """Call a method of librdkafka's admin client, which takes several subjects, for one of them."""

        def call() -> Any:
            (future,) = getattr(self.admin, method)([subject], request_timeout=self.timeout_s).values()
            return future.result()

        return self.request(call, act)

    @contextmanager
    def translated_errors(self, act: str) -> Iterator[None]:
        """Raise librdkafka's errors inside the block as Headrace's: the broker did not `act`."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as fault:
            raise self.failure(fault.args[0], act) from fault

    def failure(self, error: KafkaError, act: str) -> RequestFailed | BrokerUnreachable:
        """Our error for librdkafka's."""
        from confluent_kafka import KafkaError

        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            hint = "" if self.address.profile != PLAINTEXT else SECURED_HINT
            return self.unreachable(f"it did not {act}: {error.str()}{hint}")
        return RequestFailed(f"the broker did not {act}: {error.str()} ({error.name()})", code=error.code())

    def unreachable(self, reason: str) -> BrokerUnreachable:
        """The error of a broker that does not answer, with the address, its origin, and what to do."""
        return BrokerUnreachable(
            f"the broker at {self.address} ({self.address.origin}) is not reachable: {reason}.\n"
            "Start one with `headrace broker`, or name another with --broker HOST:PORT or HEADRACE_BROKER."
        )

    def probe(self) -> None:
        """Return when one of the addresses accepts a connection; fail at once when none does.

        librdkafka would retry for the whole timeout, and would not report the reason. With a security profile
        the connection is also authenticated.
        """
        if self.address.profile != PLAINTEXT:
            try:
                self.cluster.any()
            except BrokerUnreachable as fault:
                raise self.unreachable(str(fault)) from fault
            return
        reason = ""
        for address in self.address.addresses:
            try:
                socket.create_connection((address.host, address.port), min(PROBE_S, self.timeout_s)).close()
            except OSError as fault:
                reason = (fault.strerror or str(fault)).lower()
            else:
                return
        raise self.unreachable(reason)

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()


@contextmanager
def connect(broker: str | None, *, timeout_s: float = TIMEOUT_S) -> Iterator[BrokerSession]:
    """A session with the broker that `--broker`, the environment or `headrace.toml` names."""
    session = BrokerSession(broker_address(broker), timeout_s=timeout_s)
    session.probe()
    try:
        yield session
    finally:
        session.close()
