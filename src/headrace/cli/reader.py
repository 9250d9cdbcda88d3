"""Reads a topic in batches: from given offsets, or as a member of a consumer group."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.termination import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import KafkaError, Message

    from headrace.cli.session import BrokerSession

BATCH: Final = 10_000
POLL_S: Final = 0.1
"""How long a batch is collected, and how soon Ctrl-C is handled."""
NO_GROUP: Final = "headrace-consume"
"""librdkafka insists on a group id; without a subscription nothing is done under it."""


class TopicReader:
    """The records of one topic, in order within each partition.

    `until` is the end offset (exclusive) of each partition; without it the reader never ends. In a group, a
    batch counts as read when the next one is requested. Offsets are committed every second and at the end:
    at-least-once.
    """

    def __init__(
        self,
        session: BrokerSession,
        topic: str,
        *,
        group: str | None,
        until: Mapping[int, int] | None,
        **config: Any,
    ) -> None:
        from confluent_kafka import Consumer

        self._session = session
        self._topic = topic
        self._group = group
        self._until = until
        self._reached: set[int] = set()
        self._assigned: set[int] | None = None
        self._down_since: float | None = None
        self._consumer = Consumer({**self._config(config), "error_cb": self._on_error})

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        from confluent_kafka import TopicPartition

        until = self._until
        wanted = {number: at for number, at in offsets.items() if until is None or at < until[number]}
        self._assigned = set(wanted)
        self._consumer.assign([TopicPartition(self._topic, number, at) for number, at in wanted.items()])

    def subscribe(self) -> None:
        """Read the assigned partitions from the committed offsets of the group."""
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def batches(self, count: int | None = None) -> Iterator[list[Message]]:
        """Batches of records, at most `count` records in total, up to `until`."""
        left = count
        while left != 0 and not self._is_finished():
            messages = self._consumer.consume(BATCH if left is None else min(BATCH, left), POLL_S)
            records = self._records_in(messages)
            self._check_connection(heard=bool(messages))
            if records:
                yield records
                self._store(records)
                left = None if left is None else left - len(records)

    def close(self) -> None:
        """Commit, leave the group, and close the connections."""
        self._consumer.close()

    def _records_in(self, messages: list[Message]) -> list[Message]:
        """The records among librdkafka's messages, without those at or after `until`."""
        records = [message for message in messages if message.error() is None]
        if len(records) != len(messages):
            for message in messages:
                self._notice(message)
        return records if self._until is None else self._before_the_end(records, self._until)

    def _before_the_end(self, records: list[Message], until: Mapping[int, int]) -> list[Message]:
        wanted = []
        for record in records:
            number: Any = record.partition()
            offset: Any = record.offset()
            if offset < until[number]:
                wanted.append(record)
            if offset + 1 >= until[number]:
                self._reached.add(number)
        return wanted

    def _notice(self, message: Message) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offsets may be marks of transactions, or compacted away: no record shows them passed.
            self._reached.add(message.partition() or 0)
        elif error.fatal() or not error.retriable():
            raise self._failure(error)

    def _on_error(self, error: KafkaError) -> None:
        """Remember since when no broker is reachable; librdkafka calls this while a batch is collected."""
        if error.name() == "_ALL_BROKERS_DOWN":
            self._down_since = self._down_since or time.monotonic()

    def _failure(self, error: KafkaError) -> RequestFailed:
        return RequestFailed(
            f"reading {self._topic!r} failed: {error.str()} ({error.name()})", code=error.code()
        )

    def _check_connection(self, *, heard: bool) -> None:
        """Raise an error if no broker has been reachable for longer than the timeout."""
        if heard:
            self._down_since = None
        if self._down_since is None or time.monotonic() - self._down_since < self._session.timeout_s:
            return
        self._session.probe()
        self._down_since = None

    def _is_finished(self) -> bool:
        if self._until is None or self._assigned is None:
            return False
        return self._assigned <= self._reached

    def _store(self, records: list[Message]) -> None:
        from confluent_kafka import TopicPartition

        if self._group is None:
            return
        last: dict[Any, Any] = {record.partition(): record.offset() for record in records}
        places = [TopicPartition(self._topic, number, offset + 1) for number, offset in last.items()]
        mine = [place for place in places if place.partition in (self._assigned or ())]
        if mine:
            self._consumer.store_offsets(offsets=mine)

    def _on_assign(self, _: Any, places: list[Any]) -> None:
        self._assigned = {place.partition for place in places}
        self._reached &= self._assigned

    def _on_revoke(self, _: Any, places: list[Any]) -> None:
        lost = {place.partition for place in places}
        self._assigned = None
        self._reached -= lost

    def _config(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return self._session.client_config(
            group_id=self._group or NO_GROUP,
            enable_auto_commit=self._group is not None,
            auto_commit_interval_ms=1000,
            enable_auto_offset_store=False,
            enable_partition_eof=self._until is not None,
            # The end of a partition is noticed when a fetch comes back empty: soon, when it is waited for.
            fetch_wait_max_ms=500 if self._until is None else 50,
            **more,
        )
