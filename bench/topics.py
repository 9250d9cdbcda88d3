"""Creates and deletes the topics of a run."""

import uuid
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_SECONDS = 60
PARTITIONS = 4


def new_topic(
    bootstrap: str, *, partitions: int = PARTITIONS, config: Mapping[str, str] | None = None
) -> str:
    """The name of a new topic."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    topic = NewTopic(name, partitions, config=dict(config or {}))
    admin = _admin(bootstrap)  # held: its answers end with it
    admin.create_topics([topic])[name].result(TIMEOUT_SECONDS)
    return name


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic."""
    admin = _admin(bootstrap)
    admin.delete_topics([name])[name].result(TIMEOUT_SECONDS)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
