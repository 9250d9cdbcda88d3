"""Kills the jobs of `crash_jobs`, their tasks and their broker at chosen steps, and compares the outcome."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.processes import BrokerProcess
from tests.spark.crash_jobs import CAPITALS, COUNTS, EVENTS, REACHED, TICKS, WINDOW_SECONDS
from tests.spark.transactional_pipeline import read_committed

ROOT = Path(__file__).parents[2]
STEPS = ("begun", "computed", "written", "marked", "committed")
RECORDS = 300
KEYS = 3
PARTITIONS = {EVENTS: 2, TICKS: 1, CAPITALS: 3, COUNTS: 2}
MOST_LIVES = 5
LIFE_SECONDS = 300

Victim = Literal["driver", "broker", "task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Which process is killed at which step of which job; `batch` counts the batches of the job's process."""

    victim: Victim
    job: str
    step: str
    batch: int


class Matrix:
    """A broker, the input of both jobs, and their lives until all input is processed."""

    def __init__(self, kafka: BrokerProcess, folder: Path) -> None:
        self._kafka = kafka
        self._folder = folder
        self._errors = folder / "errors"
        self._records = 0
        self.struck: list[Kill] = []
        admin = AdminClient({"bootstrap.servers": kafka.address})
        topics = [NewTopic(name, partitions, 1) for name, partitions in PARTITIONS.items()]
        for created in admin.create_topics(topics).values():
            created.result(100)
        self.fill()

    def fill(self, records: int = RECORDS) -> None:
        """Add input for both jobs."""
        producer = Producer({"bootstrap.servers": self._kafka.address, "log_level": 0})
        for number in range(self._records, self._records + records):
            key = f"k{number % KEYS}".encode()
            producer.produce(EVENTS, f"event {number}".encode(), key=key)
            producer.produce(TICKS, str(number).encode(), key=key)
        assert producer.flush(100) == 0
        self._records += records

    def live(self, *kills: Kill) -> int:
        """Run the jobs' process, with kills that have the same job and victim; its exit code."""
        stop = [kills[0].job, *(f"{kill.step}:{kill.batch}" for kill in kills)] if kills else []
        command = [
            sys.executable,
            "-m",
            "tests.spark.crash_jobs",
            self._kafka.address,
            str(self._folder),
            *stop,
        ]
        with (
            self._errors.open("a") as errors,
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                if kills:
                    self._strike(kills, process)
                return process.wait(LIFE_SECONDS)
            finally:
                _kill_all_of(process)

    def live_to_the_end(self) -> None:
        """Start the jobs again until they have done all."""
        for _ in range(MOST_LIVES):
            if self.live() == 0:
                return
        raise AssertionError(self._errors.read_text()[-5000:])

    def _strike(self, kills: Sequence[Kill], process: "subprocess.Popen[str]") -> None:
        """Kill at each step that the process reaches before it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            reached, _, step = line.strip().partition(" ")
            if reached != REACHED:
                continue
            kill = next(kill for kill in kills if kill.step == step)
            self.struck.append(kill)
            match kill.victim:
                case "driver":
                    _kill_all_of(process)
                    return
                case "broker":
                    self._kafka.restart()
                case "task":
                    (self._folder / "poison").touch()
            process.stdin.write("\n")
            process.stdin.flush()
            if set(kills) <= set(self.struck):
                return

    def check(self) -> None:
        """Pass when the outputs are those of the whole input computed at once."""
        capitals = read_committed(self._kafka.address, CAPITALS, PARTITIONS[CAPITALS])
        expected = [f"EVENT {number}" for number in range(self._records)]
        assert sorted(_flat(capitals)) == sorted(expected)
        for partition in capitals:
            for key in range(KEYS):
                numbers = [int(value.split()[1]) for value in partition]
                of_key = [number for number in numbers if number % KEYS == key]
                assert of_key == sorted(of_key)
        counted = read_committed(self._kafka.address, COUNTS, PARTITIONS[COUNTS])
        assert sorted(_flat(counted)) == sorted(_closed_windows(self._records))


def _closed_windows(records: int) -> list[str]:
    starts = Counter(
        (second // WINDOW_SECONDS * WINDOW_SECONDS, f"k{second % KEYS}") for second in range(records)
    )
    last = records - 1
    return [f"{start} {key} {n}" for (start, key), n in starts.items() if start + WINDOW_SECONDS <= last]


def _flat(partitions: list[list[str]]) -> list[str]:
    return [value for partition in partitions for value in partition]


def _kill_all_of(process: "subprocess.Popen[str]") -> None:
    """Kill Python, the JVM and the tasks, which have a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
