"""The topics of a run: filled once, read by all systems."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

from bench.spark.program.records import DEVICES
from bench.topics import TIMEOUT_SECONDS, new_topic

DISTINCT = 60_000
"""So many records are made, over an hour of event time, and written again and again."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
QUEUED = 400_000
FEED_SECONDS = 0.01


def filled_topic(bootstrap: str, *, records: int, record_bytes: int) -> str:
    """A topic with this many JSON records of this size."""
    topic = new_topic(bootstrap)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2 * QUEUED,
            "delivery.report.only.error": True,
        }
    )
    made = [
        {"value": json_record(n * HOUR_MS // DISTINCT, n, record_bytes)}
        for n in range(min(DISTINCT, records))
    ]
    written = 0
    while written < records:
        messages = made[: records - written]
        written += producer.produce_batch(topic, messages)
        while len(producer) > QUEUED:
            producer.poll(0.01)
    if producer.flush(TIMEOUT_SECONDS):
        raise RuntimeError(f"{topic} could not be filled: the broker did not take all records in time")
    return topic


def json_record(at_ms: int, number: int, record_bytes: int) -> bytes:
    """A JSON object of that size: device, reading, event time, and a note that fills it up."""
    at = (BEGIN + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    start = f'{{"device":"d{number % DEVICES:03}","reading":{number % 1000}.25,"at":"{at}","note":"'
    return (start + "n" * (record_bytes - len(start) - 2) + '"}').encode()


@contextmanager
def trickle(bootstrap: str, topic: str, *, per_second: int) -> Iterator[None]:
    """Write a few records at a time to a topic while the block runs; their event time is now."""
    ended = threading.Event()
    feeder = threading.Thread(target=_feed, args=(bootstrap, topic, per_second, ended), name="trickle")
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        feeder.join()


def _feed(bootstrap: str, topic: str, per_second: int, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    began = time.monotonic()
    written = 0
    while not ended.wait(FEED_SECONDS):
        due = int((time.monotonic() - began) * per_second)
        now_ms = int((datetime.now(UTC) - BEGIN) / timedelta(milliseconds=1))
        for number in range(written, due):
            producer.produce(topic, json_record(now_ms, number, 100))
        written = due
        producer.poll(0)
    producer.flush(TIMEOUT_SECONDS)
