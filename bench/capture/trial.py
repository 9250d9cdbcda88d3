"""One system captures one table: throughput, latency, memory and start-up time."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench.capture.aims import (
    CHANGES,
    EVENTS,
    FOOTPRINT,
    LATENCY,
    MB,
    MS,
    ROWS,
    SECONDS,
    SNAPSHOT,
    THROUGHPUT,
)
from bench.capture.plan import Plan
from bench.processes import resident_megabytes, wait_until
from bench.readings import Readings, percentile
from headrace.client.cluster import Cluster
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition as Place
from headrace.client.topics import NewTopic, create_topics
from headrace.testing.postgres import PostgresServer

DEADLINE_S = 120.0
TABLE = """
CREATE TABLE events
    (id bigint PRIMARY KEY, customer text, product text, amount numeric(10, 2), at timestamptz)
"""
ROWS_SQL = """
INSERT INTO events SELECT g, 'customer ' || g %% 1000, 'product ' || g %% 100, g %% 10000 / 100.0, now()
FROM generate_series(%s::bigint, %s::bigint) g
"""
BURST = 1_000
"""Rows per transaction in the throughput measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a system."""

    system: str
    plan: Plan
    server: PostgresServer
    bootstrap: str
    folder: Path
    readings: Readings

    def run(self, number: int) -> None:
        """All measurements, in a new database."""
        self._start_up(f"{self.system}{number}small")
        name = f"{self.system}{number}"
        url = self.server.create_database(name)
        rows = self.plan.snapshot[self.system]
        with psycopg.connect(url, autocommit=True) as connection, Cluster.of(self.bootstrap) as cluster:
            topic = Topic(cluster, f"{name}.public.events")
            connection.execute(TABLE)
            connection.execute(ROWS_SQL, [1, rows])
            begun = time.monotonic()
            with self._process(url, name) as process:
                whole = topic.await_records(rows) - begun
                self._add(THROUGHPUT, SNAPSHOT, ROWS, rows / whole)
                newest = self._changes(connection, topic, rows)
                self._latency(connection, topic, newest)
                self._add(FOOTPRINT, "memory in the end", MB, resident_megabytes(process.pid))
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE active_pid IS NOT NULL"
            )

    def _start_up(self, name: str) -> None:
        """From the start of the process until the row of its table is in the topic."""
        url = self.server.create_database(name)
        with psycopg.connect(url, autocommit=True) as connection, Cluster.of(self.bootstrap) as cluster:
            topic = Topic(cluster, f"{name}.public.events")
            connection.execute(TABLE)
            connection.execute(ROWS_SQL, [1, 1])
            begun = time.monotonic()
            with self._process(url, name):
                self._add(FOOTPRINT, "start to the first row", SECONDS, topic.await_records(1) - begun)

    def _changes(self, connection: psycopg.Connection[Any], topic: "Topic", newest: int) -> int:
        """Transactions of a thousand rows, written as fast as possible."""
        for count in (self.plan.warm, self.plan.changes[self.system]):
            with topic.reader() as consumer:
                begun = time.monotonic()
                for first in range(newest + 1, newest + count + 1, BURST):
                    connection.execute(ROWS_SQL, [first, first + BURST - 1])
                newest += count
                took = await_row(consumer, newest) - begun
        self._add(THROUGHPUT, CHANGES, EVENTS, count / took)
        return newest

    def _latency(self, connection: psycopg.Connection[Any], topic: "Topic", newest: int) -> None:
        """Transactions of one row at a steady rate; from the end of the commit to the consumer."""
        count = int(self.plan.rate * self.plan.seconds)
        committed: dict[int, float] = {}
        seen: dict[int, float] = {}
        with topic.reader() as consumer:
            newest += 1
            noting = threading.Thread(target=note_arrivals, args=(consumer, newest, newest + count, seen))
            noting.start()
            connection.execute(ROWS_SQL, [newest, newest])
            wait_until(lambda: newest in seen, DEADLINE_S)  # so that the connection is established
            begun = time.monotonic()
            for index in range(count):
                time.sleep(max(0.0, begun + index / self.plan.rate - time.monotonic()))
                number = newest + 1 + index
                connection.execute(ROWS_SQL, [number, number])
                committed[number] = time.monotonic()
            noting.join(DEADLINE_S)
        delays = sorted(max(0.0, seen[number] - committed[number]) * 1000 for number in committed)
        for percent in (50, 99):
            self._add(LATENCY, f"p{percent}", MS, percentile(delays, percent))

    def _add(self, measure: str, cell: str, unit: str, value: float) -> None:
        self.readings.add(measure=measure, cell=cell, unit=unit, system=self.system, value=value)

    @contextmanager
    def _process(self, url: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
        commands = {
            "headrace": [
                "headrace.cli",
                "capture",
                "start",
                "--tables",
                "events",
                "--name",
                name,
                "--broker",
                self.bootstrap,
            ],
            "debezium": ["bench.capture.debezium", self.bootstrap, name, str(self.folder)],
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *commands[self.system]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,  # Debezium's engine writes logs/ to its working directory
                env={
                    **os.environ,
                    "HEADRACE_CAPTURE": url,  # the process list would show its password
                    "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),
                },
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Topic:
    """The topic of the captured table."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._place = Place(name, 0)
        self._bootstrap = ",".join(str(address) for address in cluster.brokers())
        create_topics(cluster, [NewTopic(name=name, partitions=1, configs={"cleanup.policy": "compact"})])

    def await_records(self, count: int) -> float:
        """Wait for a number of records; returns the time at which they are in the topic."""
        if not wait_until(
            lambda: list_offsets(self._cluster, {self._place: LATEST})[self._place] >= count, DEADLINE_S
        ):
            raise TimeoutError(f"{self._place} did not get {count} records before the deadline")
        return time.monotonic()

    @contextmanager
    def reader(self) -> Iterator[Consumer]:
        """A read_committed consumer at the end of the topic."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 1,
            }
        )
        end = list_offsets(self._cluster, {self._place: LATEST})[self._place]
        consumer.assign([TopicPartition(*self._place, max(0, end - 1))])
        try:
            yield consumer
        finally:
            consumer.close()


def note_arrivals(consumer: Consumer, first: int, last: int, seen: dict[int, float]) -> None:
    """Record the arrival times of these rows."""
    while last not in seen:
        message = consumer.poll(DEADLINE_S)
        if message is None:
            raise TimeoutError(f"row {last} did not arrive before the deadline")
        if not message.error() and message.value():
            number = json.loads(message.value())["after"]["id"]
            if first <= number <= last:
                seen[number] = time.monotonic()


def await_row(consumer: Consumer, number: int) -> float:
    """Wait for a row; returns the time of its arrival. Values are not parsed, which would slow the consumer
    down."""
    wanted = f'"id":{number},'.encode()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.02):
            if wanted in (message.value() or b""):
                return time.monotonic()
    raise TimeoutError(f"row {number} did not arrive before the deadline")
