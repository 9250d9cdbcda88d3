"""Headrace, as its command line starts it."""

import sys
from pathlib import Path

from bench.broker.systems.kafka_ping import ping_kafka
from bench.broker.systems.system import Flush, Node, ServerNode, System
from bench.machine import package_versions
from bench.processes import Server, free_port

READY = "headrace broker ready on"
FLUSH = {Flush.OS: "os", Flush.ALWAYS: "always"}


def _set_up(folder: Path, flush: Flush) -> Node:
    # A port that is known beforehand can be asked from the first moment on.
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "headrace.broker", "--listen", address]
    command += ["--data", str(folder / "data"), "--flush", FLUSH[flush]]
    return ServerNode(address, Server(command, log=folder / "log", is_ready=lambda text: READY in text))


HEADRACE = System(
    name="headrace",
    title="Headrace",
    client="librdkafka",
    set_up=_set_up,
    ping=ping_kafka,
    version=lambda: package_versions("headrace").get("headrace", "unknown"),
    has_partitions=True,
    prints_ready=True,
)
