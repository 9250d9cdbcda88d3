"""The systems of the comparison, each started with its storage."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.testing import BrokerProcess
from tools.environments import make_environment

LIBRARY = "9.5.6"
LOCK = Path(__file__).parent / "peers" / "eventsourcing.lock"
TITLES = {
    "headrace": "Headrace",
    "flushed": "Headrace, flushed",
    "sqlite": f"eventsourcing {LIBRARY}, SQLite",
    "postgres": f"eventsourcing {LIBRARY}, PostgreSQL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A program to run, and additional arguments of its tasks."""

    name: str
    command: tuple[str, ...]
    task: Mapping[str, Any]


@contextmanager
def started(name: str, folder: Path) -> Iterator[System]:
    """A system that is ready; its storage is stopped when the block ends."""
    if name in ("headrace", "flushed"):
        flush = ("--flush", "always") if name == "flushed" else ()
        with BrokerProcess(folder / name, *flush) as broker:
            command = (sys.executable, "-m", "bench.events.program")
            yield System(name=name, command=command, task={"broker": broker.bootstrap})
        return
    python = str(make_environment(f"eventsourcing-{LIBRARY}", LOCK.read_text()))
    command = (python, "-m", "bench.events.peers.library")
    if name == "sqlite":
        settings = {
            "PERSISTENCE_MODULE": "eventsourcing.sqlite",
            "SQLITE_DBNAME": str(folder / "events.sqlite"),
        }
        yield System(name=name, command=command, task={"environment": settings})
        return
    with _postgres(python, folder) as port:
        settings = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": "postgres",
            "POSTGRES_HOST": "127.0.0.1",
            "POSTGRES_PORT": port,
            "POSTGRES_USER": "postgres",
            "POSTGRES_PASSWORD": "none",
            "POSTGRES_POOL_SIZE": "16",
        }
        yield System(name=name, command=command, task={"environment": settings})


@contextmanager
def _postgres(python: str, folder: Path) -> Iterator[str]:
    command = [python, "-m", "bench.events.peers.postgres", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            sys.exit("PostgreSQL did not start: go without it, by --systems headrace,flushed,sqlite")
        try:
            yield port
        finally:
            server.stdin.close()
            server.wait()
