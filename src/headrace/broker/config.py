"""The broker's own settings, checked when they are built."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.groups.settings import GroupSettings
from headrace.broker.listeners import Endpoint, InvalidSetting, Listener
from headrace.broker.security.settings import SecuritySettings
from headrace.broker.shares.settings import ShareSettings
from headrace.broker.transactions.transaction import TransactionSettings
from headrace.metrics.address import MetricsAddress  # noqa: TC001  a field of a dataclass
from headrace.storage.archive_store import check_archive_url

__all__ = ["BrokerConfig", "Flush", "InvalidSetting"]


class Flush(enum.Enum):
    """When acknowledged records are synced to disk, and not only in the page cache."""

    OS = "os"
    INTERVAL = "interval"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of a broker. Every setting has a default for one machine."""

    data: Path = field(default_factory=lambda: Path("data"))
    """The data folder."""
    host: str = "127.0.0.1"
    """The loopback address to listen on, without encryption and authentication."""
    port: int = 9092
    """The port to listen on; 0 for any free one."""
    listeners: tuple[Listener, ...] = ()
    """The addresses to listen on instead of `host` and `port`, each with its security protocol."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """TLS, SASL and super users."""
    node_id: int = 1
    """`node.id`: the broker's number for clients; the default is that of Apache Kafka's examples."""
    advertised_host: str | None = None
    """The host name that clients connect to; the host of the listener by default."""
    flush: Flush = Flush.OS
    flush_interval_ms: int = 1000
    """How often `flush=interval` syncs."""
    auto_create_topics: bool = True
    default_partitions: int = 1
    """`num.partitions`: the number of partitions of a topic that is created without one."""
    request_limit_bytes: int = 100 * 2**20
    """The largest request that is read."""
    max_connections: int = 10_000
    """`max.connections`: the most open connections."""
    max_connections_per_ip: int = 2_000
    """`max.connections.per.ip`: the most open connections of one address."""
    connection_memory_bytes: int = 256 * 2**20
    """The most memory of requests that are being read and responses that are not sent yet."""
    max_partitions: int = 10_000
    """The most partitions of all topics."""
    idle_connection_ms: int = 600_000
    """`connections.max.idle.ms`: a connection is closed after this time without a request."""
    maintenance_interval_ms: int = 5_000
    """The interval of retention, compaction and checkpoints."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    """Limits and times of consumer groups and their offsets."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    """Limits and times of transactions."""
    shares: ShareSettings = field(default_factory=ShareSettings)
    """Limits of share groups."""
    memory_topics_bytes: int = 2**30
    """The most bytes of all in-memory topics."""
    compaction_bytes_per_second: int = 0
    """The most that compaction reads and writes a second; 0 for no limit."""
    archive: str | None = None
    """The URL of the archive for tiered topics, such as `s3://bucket/prefix`; None for no tiered storage."""
    archive_cache_bytes: int = 2**30
    """Disk space for archived records that are being read."""
    archive_interval_ms: int = 5_000
    """How often closed segments are copied to the archive."""
    slow_request_ms: int | None = None
    """Requests that take longer are logged; None for none."""
    metrics: MetricsAddress | None = None
    """Where metrics and health are served; None for nowhere. Clients may push their metrics if they are."""
    client_metrics_interval_ms: int = 60_000
    """How often clients push their metrics (KIP-714)."""

    def __post_init__(self) -> None:
        for listener in self.all_listeners:
            self.security.check(listener)
        if not 0 <= self.node_id < 2**31:
            raise InvalidSetting(f"node id {self.node_id} is not valid: choose one from 0 to 2147483647")
        if self.default_partitions < 1:
            raise InvalidSetting("a topic has at least one partition")
        if self.archive is not None:
            check_archive_url(self.archive)
        if not 100 <= self.client_metrics_interval_ms < 2**31:
            raise InvalidSetting("clients push their metrics every 100 ms at most: raise the interval")

    @property
    def all_listeners(self) -> tuple[Listener, ...]:
        """The listeners; the first is the one that `Broker.host` and `Broker.port` name."""
        if self.listeners:
            return self.listeners
        advertised = None if self.advertised_host is None else Endpoint(self.advertised_host, 0)
        return (Listener(host=self.host, port=self.port, advertised=advertised),)

    @property
    def has_authentication(self) -> bool:
        """Whether clients of at least one listener must authenticate."""
        return any(map(self.security.authenticates, self.all_listeners))
