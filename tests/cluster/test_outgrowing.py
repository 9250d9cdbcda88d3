"""One pipeline file, on one machine and on clusters that lose a broker and a worker: exact on both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from headrace.testing import BrokerProcess
from tests.cluster import pipeline
from tests.cluster.shop import closing_orders, create_topic, expected, found, order, write
from tools.apache_kafka import ApacheKafkaCluster
from tools.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ORDERS = 20_000
TURN_S = 0.5
PATIENCE_S = 400.0
SETTINGS = """[spark.settings]
"spark.sql.shuffle.partitions" = 2
"""


class Application:
    """`headrace run` of the pipeline file, in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "headrace.toml").write_text(SETTINGS)
        (folder / "pipeline.py").write_text(Path(pipeline.__file__).read_text())
        self._said = folder / "said"
        command = [sys.executable, "-m", "headrace.cli", "run", "pipeline.py", *options]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*command, "--state", str(folder / "state")],
                cwd=folder,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """What it printed."""
        return self._said.read_text(errors="replace")

    def finish(self) -> None:
        """Return when it has exited successfully."""
        assert self._process.wait(PATIENCE_S) == 0, self.said

    def await_results(self, count: Callable[[], int], wanted: int) -> None:
        """Return when there are this many results."""
        deadline = time.monotonic() + PATIENCE_S
        while (there := count()) < wanted:
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, f"{there} of {wanted} results are there\n{self.said}"
            time.sleep(TURN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def test_on_one_machine(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap)
        write(broker.bootstrap, map(order, range(ORDERS)))
        write(broker.bootstrap, closing_orders())
        with Application(tmp_path / "run", "--once", "--broker", broker.bootstrap) as application:
            application.finish()
        assert found(broker.bootstrap) == expected(map(order, range(ORDERS)))


def test_on_clusters_that_lose_a_broker_and_a_worker(tmp_path: Path) -> None:
    # A dead broker is noticed after 9 seconds by default, which shows nothing more.
    quick = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    with ApacheKafkaCluster(3, properties=quick) as kafka, SparkCluster(2) as spark:
        bootstrap = kafka.bootstrap
        create_topic(bootstrap)
        write(bootstrap, map(order, range(ORDERS // 2)))
        with Application(tmp_path, "--broker", bootstrap, "--master", spark.master) as application:
            application.await_results(lambda: sum(map(len, found(bootstrap).values())), 100)
            kafka.nodes[0].kill()
            spark.workers[0].kill()
            write(bootstrap, map(order, range(ORDERS // 2, ORDERS)))
            write(bootstrap, closing_orders())
            whole = expected(map(order, range(ORDERS)))
            application.await_results(
                lambda: sum(map(len, found(bootstrap).values())), sum(map(len, whole.values()))
            )
        assert found(bootstrap) == whole, application.said
