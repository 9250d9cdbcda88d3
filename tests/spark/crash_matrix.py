"""Kills the jobs of `crash_jobs`, their tasks and their broker at chosen steps, and compares the outcome."""

import os
import signal
import subprocess
import sys
from collections import Counter
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
    """Who dies, and when: at a step of a batch of one of the jobs."""

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
        self.struck: list[Kill] = []
        admin = AdminClient({"bootstrap.servers": kafka.address})
        topics = [NewTopic(name, partitions, 1) for name, partitions in PARTITIONS.items()]
        for created in admin.create_topics(topics).values():
            created.result(30)
        self._fill()

    def _fill(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.address, "log_level": 0})
        for number in range(RECORDS):
            key = f"k{number % KEYS}".encode()
            producer.produce(EVENTS, f"event {number}".encode(), key=key)
            producer.produce(TICKS, str(number).encode(), key=key)
        assert producer.flush(30) == 0

    def live(self, kill: Kill | None = None) -> int:
        """The exit code of the jobs' process, which lost somebody on its way."""
        stop = [] if kill is None else [kill.job, kill.step, str(kill.batch)]
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
                if kill is not None:
                    self._strike(kill, process)
                return process.wait(LIFE_SECONDS)
            finally:
                _kill_all_of(process)

    def live_to_the_end(self) -> None:
        """Start the jobs again until they have done all."""
        for _ in range(MOST_LIVES):
            if self.live() == 0:
                return
        raise AssertionError(self._errors.read_text()[-5000:])

    def _strike(self, kill: Kill, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == REACHED:
                break
        else:
            return  # it ended, or died of an earlier blow, before it came to the step
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

    def check(self) -> None:
        """Pass when the outputs are those of the whole input computed at once."""
        capitals = read_committed(self._kafka.address, CAPITALS, PARTITIONS[CAPITALS])
        expected = [f"EVENT {number}" for number in range(RECORDS)]
        assert sorted(_flat(capitals)) == sorted(expected)
        for partition in capitals:
            for key in range(KEYS):
                numbers = [int(value.split()[1]) for value in partition]
                of_key = [number for number in numbers if number % KEYS == key]
                assert of_key == sorted(of_key)
        counted = read_committed(self._kafka.address, COUNTS, PARTITIONS[COUNTS])
        assert sorted(_flat(counted)) == sorted(_closed_windows())


def _closed_windows() -> list[str]:
    starts = Counter(
        (second // WINDOW_SECONDS * WINDOW_SECONDS, f"k{second % KEYS}") for second in range(RECORDS)
    )
    last = RECORDS - 1
    return [f"{start} {key} {n}" for (start, key), n in starts.items() if start + WINDOW_SECONDS <= last]


def _flat(partitions: list[list[str]]) -> list[str]:
    return [value for partition in partitions for value in partition]


def _kill_all_of(process: "subprocess.Popen[str]") -> None:
    """Kill Python, the JVM and the tasks, which have a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
