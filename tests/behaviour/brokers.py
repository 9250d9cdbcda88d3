"""The brokers that the behaviours are shown on: Headrace as a process of its own, and Apache Kafka."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tools.apache_kafka import ApacheKafka

READY = "headrace broker ready on "
STOP_SECONDS = 10


@contextmanager
def headrace(folder: Path) -> Iterator[str]:
    """The address of a Headrace broker that runs, with its data in the folder, until the block ends."""
    command = [sys.executable, "-m", "headrace.broker", "--listen", "127.0.0.1:0", "--data", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _await_ready(process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _await_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(READY):
        raise RuntimeError(f"The Headrace broker did not start: it said {line!r}, and its errors are above.")
    return line.removeprefix(READY).strip()


@contextmanager
def apache(folder: Path) -> Iterator[str]:
    """The address of an Apache Kafka that runs until the block ends; it keeps its data elsewhere."""
    with ApacheKafka(heap="512M") as kafka:
        yield kafka.bootstrap


BROKERS: Mapping[str, Callable[[Path], AbstractContextManager[str]]] = {
    "headrace": headrace,
    "apache": apache,
}
