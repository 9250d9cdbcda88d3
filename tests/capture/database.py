"""A database that is changed and captured, and its topics as they are read back."""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from headrace.capture.capture import Capture
from headrace.capture.postgres.replication import find_slot
from headrace.capture.registry import drop_capture, find_capture
from headrace.capture.settings import CaptureSettings
from tests.cli.terminal import wait_until

Record = tuple[str | None, Any]


class Database:
    """A database, by its address, and the broker that it is captured to."""

    def __init__(self, url: str, name: str, bootstrap: str) -> None:
        self.url = url
        self.name = name
        self.bootstrap = bootstrap
        self.connection = psycopg.connect(url, autocommit=True)
        self.messages: list[str] = []

    def run(self, *statements: str) -> None:
        """Each statement as a transaction of its own."""
        for statement in statements:
            self.connection.execute(statement)

    def commit(self, *statements: str) -> None:
        """All statements as one transaction."""
        with self.connection.transaction():
            self.run(*statements)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()

    def settings(self, *tables: str, **more: Any) -> CaptureSettings:
        return CaptureSettings(url=self.url, tables=tables, **{"name": "shop", **more})

    def capture(self, *tables: str, **more: Any) -> int:
        """Capture all that is committed now; how many records that made."""
        capture = Capture(
            self.settings(*tables, once=True, **more), self.bootstrap, on_message=self.messages.append
        )
        capture.run()
        return capture.records

    @contextlib.contextmanager
    def capturing(self, *tables: str, **more: Any) -> Iterator[Capture]:
        """Runs a capture during the block, which starts when the capture is streaming."""
        capture = Capture(self.settings(*tables, **more), self.bootstrap, on_message=self.messages.append)
        faults: list[BaseException] = []

        def run() -> None:
            try:
                capture.run()
            except BaseException as fault:  # noqa: BLE001  raised again by the block
                faults.append(fault)

        thread = threading.Thread(target=run)
        count = len(self.messages)
        thread.start()
        try:
            wait_until(
                lambda: faults or any("streaming" in text for text in self.messages[count:]),
                "the capture to stream",
            )
            yield capture
        finally:
            capture.stop()
            thread.join(100)
        if faults:
            raise faults[0]

    def records(self, topic: str) -> list[Record]:
        """The committed records of a topic, in order."""
        return read_topic(self.bootstrap, topic)

    def events(self, topic: str) -> list[tuple[str | None, str, Any, Any]]:
        """Key, operation, before and after of each record that has a value."""
        return [
            (key, value["op"], value["before"], value["after"]) for key, value in self.records(topic) if value
        ]

    def table(self, topic: str) -> dict[str | None, Any]:
        """The rows that the topic's records make."""
        return rebuilt(self.records(topic))

    def drop(self, name: str = "shop") -> None:
        """Drop a capture, its slot and its publication; its topics stay."""
        drop_capture(self.bootstrap, find_capture(self.bootstrap, name), self.url)

    def slot(self, name: str = "headrace_shop") -> Any:
        return find_slot(self.connection, name)

    def close(self) -> None:
        self.run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE database = current_database() AND active_pid IS NOT NULL"
        )
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        wait_until(
            lambda: not self.connection.execute(slots + " AND active").fetchall(), "the slots to be left"
        )
        self.run(f"SELECT pg_drop_replication_slot(slot_name) FROM ({slots}) AS s")
        self.connection.close()


def read_topic(bootstrap: str, topic: str, *, raw: bool = False) -> list[Any]:
    """Key and value of each committed record; `raw` gives the messages as they are."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[Any] = []
    try:
        for number in consumer.list_topics(topic, timeout=100).topics[topic].partitions:
            place = TopicPartition(topic, number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=100)
            if end:
                consumer.assign([place])
                found += _until(consumer, end)
    finally:
        consumer.close()
    return found if raw else [(_text(each.key()), json.loads(each.value() or b"null")) for each in found]


def _until(consumer: Consumer, end: int) -> Iterator[Any]:
    """The messages of a partition up to `end`, or somewhat farther: others may be writing."""
    while True:
        message = consumer.poll(100)
        assert message is not None, "timed out waiting for records"
        if message.error():
            return
        yield message
        if message.offset() >= end - 1:
            return


def rebuilt(records: list[Record]) -> dict[str | None, Any]:
    """What a table is after these records: the newest row of each key."""
    table: dict[str | None, Any] = {}
    for key, value in records:
        if value is None or value["after"] is None:
            table.pop(key, None)
        else:
            table[key] = value["after"]
    return table


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()
