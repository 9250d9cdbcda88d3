"""Processes under test: their CPU time, their memory, and a server that is started and stopped."""

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

START_SECONDS = 60
STOP_SECONDS = 30
POLL_SECONDS = 0.001


class ServerFailed(Exception):
    """A server under test did not start; the message says what it wrote."""


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and its children have used, those that have ended included."""
    total = 0.0
    for process in _tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its time is now in its parent's account of ended children
        total += times.user + times.system + times.children_user + times.children_system
    return total


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process and its children, in MB."""
    total = 0
    for process in _tree(pid):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def wait_until(met: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition is met, False when the time has passed."""
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


class Server:
    """A server that one command starts; its output goes to a file.

    It counts as started when `is_ready` says so, which is asked with what it has written so far.
    """

    def __init__(self, command: Sequence[str], *, log: Path, is_ready: Callable[[str], bool]) -> None:
        self._command = list(command)
        self._log = log
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerFailed(f"{self._command[0]} is not running: call start() first.")
        return self._process.pid

    def start(self) -> None:
        """Start the server, and return when it is ready."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        process = self._process
        wait_until(lambda: self._is_ready(self._written()) or process.poll() is not None, START_SECONDS)
        if process.poll() is not None or not self._is_ready(self._written()):
            self.stop()
            raise ServerFailed(
                f"The server did not start (exit {process.returncode}): {' '.join(self._command)}\n"
                f"Its output says why:\n{self._written()[-4000:]}"
            )

    def stop(self) -> None:
        """Ask the server to end, and return when it has gone; after a while it is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _written(self) -> str:
        return self._log.read_text(errors="replace")
