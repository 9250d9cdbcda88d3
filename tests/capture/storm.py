"""A load of transactions, while capture, broker and database are killed: what must come out of it."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import psycopg

from headrace.capture.settings import CaptureSettings
from headrace.testing import BrokerProcess
from headrace.testing.postgres import PostgresServer
from tests.capture.database import read_topic, rebuilt
from tests.cli.terminal import wait_until

TABLES = ("accounts", "moves")
ROWS = 20
DEADLINE_S = 90.0
PACE_S = 0.01
"""Between two transactions: a load and not a benchmark."""


class Storm:
    """A server, a broker and a capture, each a process that can be killed.

    Every transaction moves money between two accounts, and notes it: the sum of all accounts never changes,
    and each note is written once. Notes are numbered, so that one that is missing or doubled is seen.
    """

    def __init__(self, *, seed: int = 0, partitions: int = 1) -> None:
        self._partitions = partitions
        self._folder = TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.postgres = PostgresServer(folder / "server")
        self.broker = BrokerProcess(folder / "broker")
        self.random = random.Random(seed)
        self._capture: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._load = threading.Thread(target=self._write)
        self.committed = 0

    def __enter__(self) -> Self:
        self.postgres.start()
        self.broker.start()
        self.url = self.postgres.create_database("bank")
        with psycopg.connect(self.url) as connection:
            connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, amount int NOT NULL)")
            connection.execute(
                "CREATE TABLE moves (id bigint PRIMARY KEY, payer int, payee int, filler text)"
            )
            connection.execute(f"INSERT INTO accounts SELECT g, 100 FROM generate_series(1, {ROWS}) g")
            connection.execute(
                "INSERT INTO moves SELECT -g, 1, 1, repeat('x', 200) FROM generate_series(1, 3000) g"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._load.is_alive():
            self._load.join()
        self.kill_capture()
        self.broker.stop()
        self.postgres.__exit__()
        self._folder.cleanup()

    def start_load(self) -> None:
        self._load.start()

    def end_load(self) -> None:
        self._stopped.set()
        self._load.join()

    def start_capture(self) -> None:
        settings = CaptureSettings(url=self.url, tables=TABLES, partitions=self._partitions)
        self._capture = subprocess.Popen(
            [sys.executable, "-m", "headrace.capture.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._capture.stdin is not None
        request = {"settings": settings.to_dict(), "bootstrap": self.broker.bootstrap, "metrics": False}
        self._capture.stdin.write(json.dumps(request).encode() + b"\n")
        self._capture.stdin.flush()

    @property
    def pid(self) -> int | None:
        return None if self._capture is None else self._capture.pid

    def kill_capture(self) -> None:
        if self._capture is not None:
            self._capture.send_signal(signal.SIGKILL)
            with self._capture:
                self._capture.wait()
            self._capture = None

    def await_capture(self) -> None:
        """Return when what is committed now has reached the log; one that gave up is started again.

        While the load goes on, that is something which no capture before this one can have written.
        """
        if self._capture is None:
            self.start_capture()
        before = self.committed
        wait_until(lambda: self.committed > before + 1 or self._stopped.is_set(), "the load to go on")
        with psycopg.connect(self.url) as connection:
            newest = connection.execute("SELECT max(id) FROM moves").fetchone()
        assert newest is not None
        deadline = time.monotonic() + DEADLINE_S
        while str(newest[0]) not in self.table("moves"):
            if self._capture is None or self._capture.poll() is not None:
                self.kill_capture()
                self.start_capture()
            assert time.monotonic() < deadline, "timed out waiting for the last change"
            time.sleep(0.1)

    def records(self, table: str) -> list[tuple[str | None, Any]]:
        try:
            return read_topic(self.broker.bootstrap, f"bank.public.{table}")
        except KeyError:
            return []

    def events(self, table: str, op: str) -> list[Any]:
        return [value for _, value in self.records(table) if value is not None and value["op"] == op]

    def table(self, table: str) -> dict[str | None, Any]:
        return rebuilt(self.records(table))

    def check(self) -> None:
        """Nothing is missing or doubled, and the tables made of the topics are those of the database."""
        with psycopg.connect(self.url) as connection:
            for table in TABLES:
                found = connection.execute(f"SELECT to_jsonb(t) FROM {table} t").fetchall()
                assert self.table(table) == {str(row["id"]): row for (row,) in found}, table
            moves = [int(row[0]) for row in connection.execute("SELECT id FROM moves WHERE id > 0")]
        times = Counter(int(key or 0) for key, value in self.records("moves") if value is not None)
        assert {number: times[number] for number in moves} == dict.fromkeys(moves, 1)
        assert sum(times.values()) == len(moves) + 3000
        # The accounts were read first: each transaction that is an event of the one is two of the other.
        updates = Counter(value["source"]["txId"] for value in self.events("accounts", "u"))
        assert set(updates.values()) <= {2}
        assert {value["source"]["txId"] for value in self.events("moves", "c")} <= updates.keys()

    def _write(self) -> None:
        number = 0
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
                    row = connection.execute("SELECT coalesce(max(id), 0) FROM moves WHERE id > 0").fetchone()
                    number = 0 if row is None else row[0]
                    while not self._stopped.is_set():
                        number += 1
                        self._move(connection, number)
                        self.committed += 1
                        self._stopped.wait(PACE_S)
            except psycopg.OperationalError:
                time.sleep(0.05)

    def _move(self, connection: psycopg.Connection[Any], number: int) -> None:
        payer, payee = self.random.sample(range(1, ROWS + 1), 2)
        with connection.transaction():
            for account, sign in sorted([(payer, -1), (payee, 1)]):
                connection.execute("UPDATE accounts SET amount = amount + %s WHERE id = %s", [sign, account])
            connection.execute(
                "INSERT INTO moves VALUES (%s, %s, %s, %s)",
                [number, payer, payee, "y" * self.random.randint(0, 300)],
            )
