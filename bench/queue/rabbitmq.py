"""RabbitMQ, as Debian's package installs it, in a folder of its own."""

import importlib.util
import shutil
import socket
import subprocess
from pathlib import Path

from bench.broker.systems.system import Flush, Node, ServerNode, System
from bench.processes import Server, free_port

PROGRAM = "rabbitmq-server"


def missing() -> str | None:
    """Why RabbitMQ cannot be compared with here; None when it can."""
    if shutil.which(PROGRAM) is None:
        return "rabbitmq-server is not on PATH (Debian: apt-get install rabbitmq-server)"
    if importlib.util.find_spec("pika") is None:
        return "its client pika is not installed (pip install pika)"
    return None


def _set_up(folder: Path, _: Flush) -> Node:
    port = free_port()
    environment = {
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    address = f"127.0.0.1:{port}"
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), PROGRAM]
    return ServerNode(
        address, Server(command, log=folder / "output", is_ready=lambda _: RABBITMQ.answers(address))
    )


def _ping(connection: socket.socket) -> bool:
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    return connection.recv(1) == b"\x01"  # a method frame: Connection.Start


def _version() -> str:
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


RABBITMQ = System(
    name="rabbitmq", title="RabbitMQ", client="rabbitmq", set_up=_set_up, ping=_ping, version=_version
)
