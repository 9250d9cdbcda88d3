"""Jobs on Spark, a crash of the broker in the middle, and a check that each effect is there once."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table

from headrace.broker.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.demo.findings import print_findings
from headrace.demo.generator import World
from headrace.demo.results import TOPICS, Results
from headrace.demo.stage import Phase, Stage
from headrace.spark.session import open_session
from headrace.streams.pipeline import load_app
from headrace.streams.runner import Order, Runner

if TYPE_CHECKING:
    from contextlib import ExitStack

    from rich.console import Console, RenderableType

    from headrace.streams.app import App

PIPELINE: Final = Path(__file__).parent / "pipeline.py"
INPUTS: Final = ("orders", "payments", "device_events", "products")
PATIENCE_S: Final = 180.0
LEAST_SECONDS: Final = 6.0


class JobsShow:
    """One performance."""

    def __init__(self, console: Console, seconds: float, stack: ExitStack) -> None:
        self._console = console
        self._seconds = max(seconds, LEAST_SECONDS)
        self._stack = stack  # which keeps the session of Spark for the act that follows

    def run(self) -> bool:
        """Play; whether the check at the end held."""
        begin = time.monotonic()
        temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True)
        with temporary as folder, BrokerProcess(Path(folder) / "broker", attached=True) as broker:
            self._say(f"A broker is up on {broker.bootstrap} after {time.monotonic() - begin:.1f} s.")
            return self._play(broker, Path(folder), begin)

    def _play(self, broker: BrokerProcess, folder: Path, begin: float) -> bool:
        app = load_app(PIPELINE)
        partitions = _make_topics(broker.bootstrap, app)
        world, results = World(broker.bootstrap), Results(broker.bootstrap, partitions)
        world.start()
        results.start()
        self._say("Orders, payments and machines write to it. Spark starts; that takes some seconds …")
        stage = JobsStage(self._console, broker, world, results, begin_s=begin, seconds=self._seconds)
        self._stack.callback(open_session(app.name).stop)
        order = Order(app=app, broker=broker.bootstrap, state=folder / "state")
        runner = Runner(order, stage)
        stage.stop = runner.stop
        code = runner.run()
        world.close()
        results.close()
        return self._check(world, results) and code == 0

    def _check(self, world: World, results: Results) -> bool:
        findings = {
            f"all {len(world.paid):,} payments met their orders, across a crash of the broker": (
                set(results.paid) == world.paid
            ),
            "no paid order is there twice": all(count == 1 for count in results.paid.values()),
            f"every hot machine raised its alert, once ({world.hot})": results.alerts == world.hot,
            f"every garbled report is among the dead letters, once ({world.garbled})": (
                results.dead == world.garbled
            ),
        }
        held = print_findings(self._console, findings)
        claim = ", each effect exactly once" if held else ""
        self._console.print(
            f"\n{world.written:,} events, three jobs (joins with a stream and a table, windows), one crash"
            f"{claim}.\nTake the jobs as a beginning with\n"
            "`headrace demo --pipeline > pipeline.py`, and run them with `headrace run pipeline.py`.\n",
            highlight=False,
        )
        return held

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


class JobsStage(Stage):
    """The live picture of the act, and its director."""

    def __init__(
        self,
        console: Console,
        broker: BrokerProcess,
        world: World,
        results: Results,
        *,
        begin_s: float,
        seconds: float,
    ) -> None:
        self._broker = broker
        self._world = world
        self._results = results
        self._begin_s = begin_s
        self._seconds = seconds
        super().__init__(console)  # last, because it draws the first picture

    def _direct(self, passed_s: float) -> None:
        match self._phase:
            case Phase.WARMING if self._results.paid:
                self.say(
                    f"The first results are there {time.monotonic() - self._begin_s:.0f} s after the start."
                )
                self._enter(Phase.RUNNING)
            case Phase.WARMING if passed_s > PATIENCE_S:
                self._end("There are no results: the lines above should say why.")
            case Phase.RUNNING if passed_s > self._seconds / 2:
                self._crash()
                self._enter(Phase.CRASHED)
            case Phase.CRASHED if passed_s > self._seconds / 2:
                self._world.close()
                self.say("The shop is closed; the jobs finish what is left.")
                self._enter(Phase.DRAINING)
            case Phase.DRAINING if self._is_complete() or passed_s > PATIENCE_S:
                self._end("Done.")

    def _crash(self) -> None:
        self._broker.kill()
        begin = time.perf_counter()
        self._broker.start()
        self.say(f"The broker was killed (kill -9) and is back after {time.perf_counter() - begin:.2f} s.")

    def _is_complete(self) -> bool:
        results, world = self._results, self._world
        return (
            len(results.paid) >= len(world.paid)
            and results.alerts >= world.hot
            and results.dead >= world.garbled
        )

    def _picture(self) -> RenderableType:
        revenue = Table(title="view revenue, the latest rows", title_justify="left", header_style="bold")
        for heading in ("from", "category", "orders", "revenue"):
            revenue.add_column(heading, justify="right" if heading in ("orders", "revenue") else "left")
        for row in list(self._results.revenue):
            start = str(row["window_start"]).partition(".")[0].partition("T")[2]
            revenue.add_row(start, row["category"], str(row["orders"]), f"{row['revenue']:.2f}")
        return Group(super()._picture(), revenue) if self._results.revenue else super()._picture()


def _make_topics(bootstrap: str, app: App) -> dict[str, int]:
    """The topics that the demo reads itself, with their partitions; all are made before anything runs."""
    partitions = dict.fromkeys(TOPICS, 4) | {"alerts.dead": 1}
    wanted = dict.fromkeys(INPUTS, 4) | partitions
    configs = {topic.name: topic.config for job in app.jobs for topic in job.into.topics}
    topics = [
        NewTopic(name=name, partitions=count, configs=configs.get(name, {})) for name, count in wanted.items()
    ]
    with Cluster.of(bootstrap) as cluster:
        create_topics(cluster, topics)
    return partitions
