"""NATS with JetStream on files."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

from bench.broker.systems.system import Flush, Node, ServerNode, System
from bench.processes import Server, free_port

CONFIGURATION = """
listen: "{address}"
jetstream {{
  store_dir: "{folder}/data"
  max_file_store: 100GB
  sync_interval: {sync}
}}
"""
SYNC = {Flush.OS: '"2m"', Flush.ALWAYS: "always"}  # two minutes is its default


def _program() -> str:
    """The server's binary, which the package installs next to the interpreter."""
    installed = Path(sys.executable).with_name("nats-server")
    return str(installed) if installed.exists() else shutil.which("nats-server") or "nats-server"


def _set_up(folder: Path, flush: Flush) -> Node:
    address = f"127.0.0.1:{free_port()}"
    file = folder / "nats.conf"
    file.write_text(CONFIGURATION.format(address=address, folder=folder, sync=SYNC[flush]))
    command = [_program(), "-c", str(file)]
    return ServerNode(address, Server(command, log=folder / "log", is_ready=lambda _: NATS.answers(address)))


def _ping(connection: socket.socket) -> bool:
    connection.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
    with connection.makefile("rb") as answers:
        return any(line.startswith(b"PONG") for line in answers)


def _version() -> str:
    said = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().removeprefix("nats-server: v")


NATS = System(
    name="nats", title="NATS JetStream", client="nats", set_up=_set_up, ping=_ping, version=_version
)
