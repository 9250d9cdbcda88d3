"""The broker's own settings, checked when they are built."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.groups.settings import GroupSettings
from headrace.broker.shares.settings import ShareSettings
from headrace.broker.transactions.settings import TransactionSettings
from headrace.errors import HeadraceError


class InvalidSetting(HeadraceError):
    """A setting that the broker cannot start with."""


class Flush(enum.Enum):
    """When an acknowledged record is on the disk itself, and not only in the page cache."""

    OS = "os"
    INTERVAL = "interval"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """How one broker runs. Every setting has a default that suits one machine."""

    data: Path = field(default_factory=lambda: Path("data"))
    """The data folder."""
    host: str = "127.0.0.1"
    """The loopback address to listen on."""
    port: int = 9092
    """The port to listen on; 0 for any free one."""
    node_id: int = 1
    """`node.id`: the number that clients know the broker by; that of Apache Kafka's own examples."""
    advertised_host: str | None = None
    """The host name that clients are told; the one they listen on by default."""
    flush: Flush = Flush.OS
    flush_interval_ms: int = 1000
    """How often `flush=interval` syncs."""
    auto_create_topics: bool = True
    default_partitions: int = 1
    """Partitions of a topic that is made without saying how many."""
    request_limit_bytes: int = 100 * 2**20
    """The largest request that is read."""
    max_connections: int = 10_000
    """Connections that are served at once (`max.connections`)."""
    max_connections_per_ip: int = 2_000
    """Connections of one address that are served at once (`max.connections.per.ip`)."""
    connection_memory_bytes: int = 256 * 2**20
    """What requests that are being read and responses that wait to be sent may take together."""
    max_partitions: int = 10_000
    """Partitions of all topics together."""
    idle_connection_ms: int = 600_000
    """After this time without a request a connection is closed."""
    maintenance_interval_ms: int = 5_000
    """How often retention, compaction and checkpoints are looked after."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    """Limits and times of consumer groups and their offsets."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    """Limits and times of transactions."""
    shares: ShareSettings = field(default_factory=ShareSettings)
    """Limits of share groups."""
    memory_topics_bytes: int = 2**30
    """What all topics in memory may hold together."""
    compaction_bytes_per_second: int = 0
    """The most that compaction reads and writes a second; 0 for no limit."""

    def __post_init__(self) -> None:
        if not _is_loopback(self.host):
            raise InvalidSetting(
                f"the broker does not listen on {self.host}: it has no users and passwords yet, so that "
                "anybody who reaches the address could read and write everything; use 127.0.0.1 instead"
            )
        if not 0 <= self.port <= 65535:
            raise InvalidSetting(
                f"port {self.port} does not exist: choose one from 0 (any free one) to 65535"
            )
        if not 0 <= self.node_id < 2**31:
            raise InvalidSetting(f"node id {self.node_id} is not possible: choose one from 0 to 2147483647")
        if self.default_partitions < 1:
            raise InvalidSetting("a topic has at least one partition")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
