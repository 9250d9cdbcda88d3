"""Workers of a queue with librdkafka's share consumer."""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.behavior.reading import DEADLINE_S, QUIET_S, TURN_S

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class Worker:
    """One member of a share group with explicit acknowledgments."""

    def __init__(self, bootstrap: str, group: str, *topics: str, at_once: int = 500) -> None:
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": at_once,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(list(topics))

    def take(self, count: int = 1) -> list[Message]:
        """Acquire that many messages."""
        taken: list[Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(taken) < count:
            assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came"
            taken += self.poll()
        return taken

    def take_quietly(self) -> list[Message]:
        """The messages that arrive within a short time, to show that there are none."""
        taken: list[Message] = []
        end = time.monotonic() + QUIET_S
        while time.monotonic() < end:
            taken += self.poll()
        return taken

    def poll(self) -> list[Message]:
        """The messages that are available now or within a moment."""
        messages = list(self._consumer.poll(TURN_S))
        assert all(message.error() is None for message in messages)
        return messages

    def say(self, messages: list[Message], kind: AcknowledgeType = ACCEPT) -> None:
        """Acknowledge messages, and wait for the response."""
        for message in messages:
            self._consumer.acknowledge(message, kind)
        for fault in self._consumer.commit_sync(DEADLINE_S).values():
            assert fault is None, fault

    def close(self) -> None:
        """Leave the group; acquired messages are released."""
        self._consumer.close()


def set_group(bootstrap: str, group: str, settings: Mapping[str, str]) -> None:
    """Set settings of a group."""
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource: Any = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(DEADLINE_S)
