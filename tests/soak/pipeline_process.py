"""A pipeline in a process of its own, which storms kill."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.broker.processes import wait_until

START_SECONDS = 600.0
"""How long Spark may take to start all jobs, also on a busy machine."""


class PipelineProcess:
    """`headrace run` in a folder, again and again; all its lives write into one log."""

    def __init__(self, folder: Path, pipeline: str, **environment: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._log = folder / "run.log"
        self._started_at = 0
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "pipeline.py").write_text(pipeline)

    def start(self) -> None:
        """Start `headrace run`."""
        self._log.touch()
        self._started_at = self._log.stat().st_size
        self._process = self._begin("run", "pipeline.py")

    def wait_until_running(self, *jobs: str) -> None:
        """Return when all these jobs have started since the last `start`."""

        def are_running() -> bool:
            log = self._log.read_bytes()[self._started_at :].decode(errors="replace")
            return all(f"job {job} runs" in log for job in jobs)

        wait_until(are_running, f"the jobs {', '.join(jobs)}", START_SECONDS)

    def ensure_running(self) -> None:
        """Start it again if it has ended: `headrace run` gives up when it finds no broker at its start."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """Kill the jobs and their Java process with SIGKILL."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def python_workers(self) -> list[int]:
        """The processes in which Spark runs Python."""
        assert self._process is not None
        session = _processes_of(self._process.pid)
        # The command of the Java process names the module too, as one of its settings.
        return [pid for pid in session if _command_of(pid)[1:3] == [b"-m", b"headrace.spark.daemon"]]

    def finish(self) -> None:
        """One more life, to the end of all input."""
        self.command("run", "pipeline.py", "--once")

    def command(self, *arguments: str) -> None:
        """Any command of `headrace`, which has to end well."""
        assert self._begin(*arguments).wait(600) == 0, self.log()

    def log(self) -> str:
        """The end of what was said."""
        return self._log.read_text()[-5000:]

    def _begin(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _processes_of(session: int) -> list[int]:
    """The processes of a session; Spark's Python processes have left the process group of its driver."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
    return found


def _command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
