"""RabbitMQ of Debian's package, in its own folder."""

import importlib.util
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.broker.systems.system import Flush, Node, ServerNode, System
from bench.processes import Server, free_port

DEBIAN = Path("/usr/lib/rabbitmq/bin")
"""The programs themselves: those on PATH change to the package's own user and folders."""
SERVER = "rabbitmq-server"


def _program(name: str) -> str | None:
    installed = DEBIAN / name
    return str(installed) if installed.exists() else shutil.which(name)


def missing() -> str | None:
    """Why RabbitMQ is not available for the comparison; None if it is."""
    if _program(SERVER) is None:
        return "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)"
    if importlib.util.find_spec("pika") is None:
        return "its client pika is not installed (pip install pika)"
    return None


class RabbitNode(ServerNode):
    """A RabbitMQ node, with the Erlang port mapper that every node starts and leaves running."""

    def __init__(self, address: str, server: Server, environment: Mapping[str, str]) -> None:
        super().__init__(address, server)
        self._environment = environment

    def close(self) -> None:
        """Stop both."""
        super().close()
        subprocess.run(_with(self._environment, "epmd", "-kill"), capture_output=True, check=False)


def _with(environment: Mapping[str, str], *command: str) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in environment.items()), *command]


def _set_up(folder: Path, _: Flush) -> Node:
    port = free_port()
    environment = {
        "HOME": str(folder),  # the cookie of the node is kept there
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    address = f"127.0.0.1:{port}"
    server = Server(
        _with(environment, _program(SERVER) or SERVER),
        log=folder / "output",
        is_ready=lambda _: RABBITMQ.answers(address),
    )
    return RabbitNode(address, server, environment)


def _ping(connection: socket.socket) -> bool:
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    return connection.recv(1) == b"\x01"  # a method frame: Connection.Start


def _version() -> str:
    # By the name of its folder: `rabbitmqctl version` would start a register of names, and leave it behind.
    found = re.search(r"rabbitmq_server-([\d.]+)", str(Path(_program(SERVER) or SERVER).resolve()))
    return found[1] if found else "unknown"


RABBITMQ = System(
    name="rabbitmq", title="RabbitMQ", client="rabbitmq", set_up=_set_up, ping=_ping, version=_version
)
