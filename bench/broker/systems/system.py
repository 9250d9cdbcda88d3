"""The interface of a system under test."""

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from bench.processes import Server

PING_SECONDS = 1


class Flush(StrEnum):
    """When a record counts as stored: in the page cache, or on disk; and whether it is sent by TLS."""

    OS = "page cache"
    TLS = "page cache, TLS"
    ALWAYS = "flushed"


class Node(Protocol):
    """One system, set up in its own folder; it can be started and stopped repeatedly."""

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        ...

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        ...

    @property
    def ca(self) -> str:
        """The file with the certificate that clients trust; empty without TLS."""
        ...

    def start(self) -> None:
        """Start it; returns when it is ready."""
        ...

    def stop(self) -> None:
        """Stop it; returns when it has exited."""
        ...

    def close(self) -> None:
        """Stop it if it runs, and release its resources."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of broker: how to set it up, how to check that it responds, and its client."""

    name: str
    title: str
    client: str
    set_up: Callable[[Path, Flush], Node]
    ping: Callable[[socket.socket], bool]
    version: Callable[[], str]
    has_partitions: bool = False
    prints_ready: bool = False

    @property
    def speaks_kafka(self) -> bool:
        """Whether it can be used with the Kafka client and the same bytes."""
        return self.client == "librdkafka"

    def answers(self, address: str) -> bool:
        """Whether the system at this address responds correctly."""
        host, port = address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=PING_SECONDS) as connection:
                return self.ping(connection)
        except OSError:
            return False


class ServerNode:
    """A node that is one process of the benchmark."""

    def __init__(self, address: str, server: Server, *, ca: str = "") -> None:
        self.address = address
        self.ca = ca
        self._server = server

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._server.pid

    def start(self) -> None:
        """Start the process, and return when it is ready."""
        self._server.start()

    def stop(self) -> None:
        """Stop the process."""
        self._server.stop()

    def close(self) -> None:
        """Stop the process if it runs."""
        self._server.stop()


def write_certificate(folder: Path) -> Path:
    """A self-signed certificate for loopback and its key, in one PEM file that both brokers read."""
    file, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(key.read_text() + file.read_text())
    return file
