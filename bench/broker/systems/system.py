"""What the benchmark needs of a system under test."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from bench.processes import Server

PING_SECONDS = 1


class Flush(StrEnum):
    """When a record counts as stored: in the page cache, or on disk."""

    OS = "page cache"
    ALWAYS = "flushed"


class Node(Protocol):
    """One system, set up in a folder of its own; `start` and `stop` may follow one another."""

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        ...

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        ...

    def start(self) -> None:
        """Start it, and return when it says or shows that it is ready."""
        ...

    def stop(self) -> None:
        """Stop it, and return when it has gone."""
        ...

    def close(self) -> None:
        """Stop it if it runs, and give back what it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of broker: how to set one up, how to ask whether it answers, and which client loads it."""

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
        """Whether the same Kafka client, and the same bytes, can be used."""
        return self.client == "librdkafka"

    def answers(self, address: str) -> bool:
        """Whether the system at this address gives a proper answer now."""
        host, port = address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=PING_SECONDS) as connection:
                return self.ping(connection)
        except OSError:
            return False


class ServerNode:
    """A node that is one process of ours."""

    def __init__(self, address: str, server: Server) -> None:
        self.address = address
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
