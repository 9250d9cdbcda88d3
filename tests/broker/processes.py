"""A broker in a process of its own, which a test may kill, and whose memory it may weigh."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READY = "headrace broker ready on "
DEADLINE_SECONDS = 30.0
TURN_SECONDS = 0.005


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Return when the condition holds; `what` names it for the failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(TURN_SECONDS)


class BrokerProcess:
    """`python -m headrace.broker` on a folder: started, killed and started again on the same port.

    `before` is a command that runs the broker's, such as `prlimit --nofile=64`.
    """

    def __init__(self, folder: Path, *options: str, port: int = 0, before: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port = port
        self._options = options
        self._before = before
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder.parent / f"{folder.name}.stderr"
        self._errors.write_text("")

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """Where clients find the broker; the same after a restart."""
        return f"127.0.0.1:{self.port}"

    @property
    def errors(self) -> str:
        """What the broker has logged, over all its lives."""
        return self._errors.read_text(errors="replace")

    def launch(self) -> subprocess.Popen[str]:
        """Start the process, and do not wait for it."""
        listen = ["--listen", self.address, "--data", str(self.folder)]
        command = [*self._before, sys.executable, "-m", "headrace.broker", *listen, *self._options]
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        return self._process

    def start(self) -> None:
        """Start the broker, and return when it takes connections."""
        process = self.launch()
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), f"the broker did not start: it wrote {line!r} and {self.errors!r}"
        self.port = int(line.rpartition(":")[2])

    def kill(self) -> None:
        """End the broker at once, as kill −9 does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask the broker to end; gives its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            process.send_signal(number)
            return process.wait(DEADLINE_SECONDS)

    def restart(self) -> None:
        """Kill the broker and start it again, on the same folder and port."""
        self.kill()
        self.start()

    @property
    def pid(self) -> int:
        """The process id of the broker that runs."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is still there."""
        return self._process is not None and self._process.poll() is None

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
