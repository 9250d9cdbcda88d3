"""A standalone Spark cluster on this machine: a master and workers from the pyspark wheel, on loopback.

    with SparkCluster(workers=2) as spark:
        session_on(spark.master)
        spark.workers[1].kill()

The workers have one core and one gigabyte each, unless told otherwise. Each cluster has a temporary folder of
its own, which goes when it is closed. `python -m tools.spark_cluster` runs one until Ctrl-C.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from tools.server import Server

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
START_SECONDS = 60
STOP_SECONDS = 30
POLL_SECONDS = 0.1


class SparkClusterUnavailable(Exception):
    """The cluster could not be started; the message says why and what to do."""


class Daemon:
    """A master or a worker: one process of Spark's, with all that it starts.

    `start`, `stop` and `kill` may follow one another.
    """

    def __init__(self, folder: Path, main: str, *arguments: str) -> None:
        self._folder = folder
        self._command = [str(HOME / "bin" / "spark-class"), main, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id, which is also that of the group of all that it started."""
        if self._process is None:
            raise SparkClusterUnavailable("This part of the cluster does not run: call start() first.")
        return self._process.pid

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOST},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a worker's executors are killed with it, as when its machine fails
            )

    def stop(self) -> None:
        """Ask the process to end, and return when it and all that it started have gone."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started at once, as a failing machine would (SIGKILL)."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the process wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _log(self) -> Path:
        return self._folder / "daemon.log"


class SparkCluster(Server):
    """A master and its workers; `master` is the address for `SparkSession.builder.master`.

    `with SparkCluster() as spark` starts it, and closes it at the end.
    """

    def __init__(
        self, workers: int = 2, *, cores: int = 1, memory: str = "1g", port: int | None = None
    ) -> None:
        if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            raise SparkClusterUnavailable(
                "Spark needs Java 17 or later: install one (Debian: apt install openjdk-17-jre-headless)."
            )
        self._folder = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        free_port, self._page = _free_ports(2)
        port = port or free_port
        self.master = f"spark://{HOST}:{port}"
        where = ("--host", HOST, "--port", str(port), "--webui-port", str(self._page))
        self._head = Daemon(self._folder / "master", MASTER_CLASS, *where)
        self.workers = [
            self._worker(self._folder / f"worker-{number}", cores, memory) for number in range(workers)
        ]

    def _worker(self, folder: Path, cores: int, memory: str) -> Daemon:
        where = ("--host", HOST, "--webui-port", "0", "--work-dir", str(folder))
        return Daemon(folder, WORKER_CLASS, *where, "--cores", str(cores), "--memory", memory, self.master)

    def start(self) -> None:
        """Start the master and all workers, and return when the master knows them."""
        self._head.start()
        for worker in self.workers:
            worker.start()
        self.await_workers(len(self.workers))

    def await_workers(self, count: int) -> None:
        """Return when the master counts that many living workers."""
        deadline = time.monotonic() + START_SECONDS
        while self.alive() != count:
            if time.monotonic() > deadline or not self._head.is_running:
                raise SparkClusterUnavailable(
                    f"Spark's master counted {self.alive()} of {count} workers after {START_SECONDS} s; "
                    f"the ends of the logs say why:\n{self.log_tails()}"
                )
            time.sleep(POLL_SECONDS)

    def alive(self) -> int:
        """How many workers the master believes to be alive."""
        return sum(worker["state"] == "ALIVE" for worker in self._state().get("workers", []))

    def log_tails(self) -> str:
        """The last lines that each part of the cluster wrote."""
        return "\n\n".join(part.log_tail() for part in (self._head, *self.workers))

    def close(self) -> None:
        """End everything, and remove the folder."""
        for part in (*self.workers, self._head):
            part.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _state(self) -> dict[str, Any]:
        try:
            with urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
            return {}  # the master has gone, or is starting: its page is empty for a moment
        return state


def _free_ports(count: int) -> list[int]:
    """Distinct ports of loopback that were free a moment ago."""
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def main() -> None:
    """Run a standalone Spark cluster until Ctrl-C, and print its master's address."""
    parser = argparse.ArgumentParser(prog="python -m tools.spark_cluster", description=main.__doc__)
    parser.add_argument("--workers", type=int, default=2, help="how many workers (default: 2)")
    parser.add_argument("--cores", type=int, default=1, help="cores of each worker (default: 1)")
    parser.add_argument("--memory", default="1g", help="memory of each worker (default: 1g)")
    parser.add_argument("--port", type=int, help="where the master listens (default: a free one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with SparkCluster(
            options.workers, cores=options.cores, memory=options.memory, port=options.port
        ) as cluster:
            sys.stdout.write(f"spark ready on {cluster.master}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)
    except SparkClusterUnavailable as unavailable:
        sys.exit(str(unavailable))


if __name__ == "__main__":
    main()
