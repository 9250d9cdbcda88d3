"""Several processes on one stock, some of which are killed: their replies must agree with the log."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from headrace.events import EventStore
from headrace.testing import BrokerProcess
from tests.events.stock import LIMITS, PRODUCTS, Stock

ROOT = Path(__file__).parents[2]


class Worker:
    """A process that executes its orders; the replies are written line by line."""

    def __init__(self, broker: str, name: str, worker: str, orders: int) -> None:
        command = [sys.executable, "-m", "tests.events.stock", broker, name, worker, str(orders)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
        )
        self.lines: list[list[str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a process that is killed may leave a part of a line
                self.lines.append(line.split())

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def check(store: EventStore, workers: list[Worker]) -> int:
    """How many commands were replied; everything that was said must be in the log, once."""
    history = {product: list(store.history(Stock, product)) for product in _products()}
    commands = [each.command_id for events in history.values() for each in events]
    assert len(commands) == len(set(commands)), "a command had two effects"
    for events in history.values():
        assert [each.version for each in events] == list(range(1, len(events) + 1))
        quantity = 0
        for each in events:
            quantity += each.fields["quantity"] * (1 if each.type == "Received" else -1)
            assert quantity >= 0, "a decision was made on stale state"
    said = [line for worker in workers for line in worker.lines]
    places = {each.command_id: (each.id, each.version) for events in history.values() for each in events}
    for line in said:
        if line[0] == "done":
            assert places[line[1]] == (line[2], int(line[3])), "what was replied is not what is stored"
        if line[0] == "rejected":
            assert line[1] not in places, "a rejected command has an effect"
    asked = {line[1] for line in said if line[0] == "asked"}
    assert set(places) <= asked | {"first"} | {f"first-{product}" for product in _products()}
    return sum(line[0] in ("done", "rejected") for line in said)


def storm(folder: Path, *, workers: int, orders: int, kills: int, broker_kills: int, seed: int) -> int:
    """Kill workers (each is replaced) and the broker at random, let the rest finish, and check."""
    draw = random.Random(seed)
    with BrokerProcess(folder) as broker:
        name = "shop"
        with EventStore(name, broker=broker.bootstrap, partitions=3, limits=LIMITS) as store:
            for product in _products():
                store.execute(Stock, product, "receive", quantity=20, command_id=f"first-{product}")
        crew = [Worker(broker.bootstrap, name, f"w{number}", orders) for number in range(workers)]
        running = list(crew)
        for number in range(kills):
            victim = running.pop(draw.randrange(len(running)))
            _await_lines(victim, draw.randint(3, 12))
            victim.kill()
            running.append(Worker(broker.bootstrap, name, f"r{number}", orders))
            crew.append(running[-1])
        for _ in range(broker_kills):
            broker.restart()
        assert [worker.wait() for worker in running] == [0] * len(running)
        return check(EventStore(name, broker=broker.bootstrap), crew)


def _await_lines(worker: Worker, count: int) -> None:
    enough = threading.Event()
    while len(worker.lines) < count and worker.process.poll() is None:
        enough.wait(0.01)


def _products() -> list[str]:
    return [f"p{number}" for number in range(PRODUCTS)]
