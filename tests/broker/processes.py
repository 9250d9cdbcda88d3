"""A broker in a process of its own, which a test may kill, and whose memory it may weigh."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace import testing

DEADLINE_SECONDS = 100.0
TURN_SECONDS = 0.005


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Return when the condition holds; `what` names it for the failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(TURN_SECONDS)


class BrokerProcess(testing.BrokerProcess):
    """A broker that is killed at the end of a test, keeps what it logged, and can be weighed.

    `before` is a command that runs the broker's, such as `prlimit --nofile=64`.
    """

    def __init__(self, folder: Path, *options: str, port: int = 0, before: Sequence[str] = ()) -> None:
        super().__init__(folder, *options, port=port)
        self.folder = folder
        self._before = before
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder.parent / f"{folder.name}.stderr"
        self._errors.write_text("")

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """Where clients find the broker; the same after a restart."""
        return self.bootstrap

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def errors(self) -> str:
        """What the broker has logged, over all its lives."""
        return self._errors.read_text(errors="replace")

    def launch(self) -> subprocess.Popen[str]:
        """Start the process, and do not wait for it."""
        with self._errors.open("a") as errors:
            command = [*self._before, *self.command()]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        return self._process

    @property
    def resident_bytes(self) -> int:
        """The memory that the process holds now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def reset_peak(self) -> None:
        """Begin to look for the peak of the memory again."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process held since `reset_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """The processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
