"""Tiered topics as tests see them: a broker with an archive, and records in both tiers."""

from pathlib import Path
from typing import Any

from headrace.broker.config import BrokerConfig
from headrace.testing import EmbeddedBroker
from tests.broker.overflow_topics import Sender, create
from tests.broker.processes import wait_until
from tests.broker.wire_client import WireClient

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
TIERED = {"remote_storage_enable": "true", "local_retention_bytes": "0", "segment_bytes": "1024"}
IN_ONE_SEGMENT = 8
"""No segment of these tests has more records."""
SOON = {"archive_interval_ms": 20, "maintenance_interval_ms": 20}


def start_broker(folder: Path, archive: str, **settings: Any) -> EmbeddedBroker:
    """A broker that archives at once."""
    return EmbeddedBroker(BrokerConfig(**{"data": folder, "port": 0, "archive": archive, **SOON, **settings}))


def list_offset(bootstrap: str, topic: str, timestamp: int) -> int:
    """The offset of a special timestamp, or of a time."""
    with WireClient(bootstrap) as client:
        wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [wanted]}]
        answer = client.ask(2, 11, replica_id=-1, isolation_level=0, topics=topics, timeout=0)
        found = answer.topics[0].partitions[0]
        assert found.error_code == 0, found.error_code
        return int(found.offset)


def wait_until_archived(bootstrap: str, topic: str) -> int:
    """Return when only the last segment is on the local disk: its first offset."""

    def is_archived() -> bool:
        local = list_offset(bootstrap, topic, EARLIEST_LOCAL)
        end = list_offset(bootstrap, topic, LATEST)
        return max(end - IN_ONE_SEGMENT, 1) <= local == list_offset(bootstrap, topic, EARLIEST_PENDING_UPLOAD)

    wait_until(is_archived, f"{topic} to be in the archive")
    return list_offset(bootstrap, topic, EARLIEST_LOCAL)


def fill(bootstrap: str, topic: str, count: int = 60, **settings: str) -> list[str]:
    """A tiered topic with records in both tiers: their values."""
    create(bootstrap, topic, **(TIERED | settings))
    values = [f"{number:0100d}" for number in range(count)]
    sender = Sender(bootstrap, topic)
    sender.send(*values)
    sender.finish()
    wait_until_archived(bootstrap, topic)
    return values
