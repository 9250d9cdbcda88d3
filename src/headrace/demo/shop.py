"""The scenario `shop`: servers, simulator, jobs, workers, and checks that no record is lost or duplicated."""

from __future__ import annotations

import os
import tempfile
import time
from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.broker.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.demo import print_results
from headrace.demo.checks import INPUTS, OUTPUTS, CheckMonitor, ExternalReader, OutputTopicReader
from headrace.demo.database import ShopDatabase
from headrace.demo.mail_server import DemoMailServer
from headrace.demo.page_server import PageState, page_gateway
from headrace.demo.simulator import ShopClock, ShopSimulator
from headrace.demo.workers import PIPELINE, Chaos, Worker, kill_captures
from headrace.gateway.process import GatewayProcess
from headrace.streams.display import Board
from headrace.streams.pipeline import load_app
from headrace.streams.runner import Runner, RunOptions
from headrace.testing import postgres, redis
from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console, RenderableType

    from headrace.demo.checks import CheckResult
    from headrace.streams.app import App
    from headrace.streams.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServers:
    """The servers of the demo, all on this machine."""

    folder: Path
    database: PostgresServer
    url: str
    cache: RedisServer
    broker: BrokerProcess
    mailbox: DemoMailServer

    @staticmethod
    def open(stack: ExitStack) -> DemoServers:
        """Start the servers, and publish their addresses to the pipeline in the environment."""
        temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        database = stack.enter_context(PostgresServer(folder))
        servers = DemoServers(
            folder=folder,
            database=database,
            url=database.create_database("shop"),
            cache=stack.enter_context(RedisServer(folder / "redis")),
            broker=stack.enter_context(BrokerProcess(folder / "broker", attached=True)),
            mailbox=stack.enter_context(DemoMailServer()),
        )
        set_variables(stack, {"HEADRACE_POSTGRES": servers.url, "HEADRACE_REDIS": servers.cache.url})
        return servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The simulator, the workers, the checks, and the state of the web page."""

    simulator: ShopSimulator
    watch: CheckMonitor
    workers: tuple[Worker, ...]
    live: PageState

    @staticmethod
    def open(stack: ExitStack, servers: DemoServers) -> Shop:
        """Create the tables, and start workers and checks; the simulator waits for its `start`."""
        bootstrap, clock = servers.broker.bootstrap, ShopClock()
        written, read = ShopDatabase(servers.url), ShopDatabase(servers.url)
        for database in (written, read):
            stack.callback(database.close)
        simulator, outputs = ShopSimulator(bootstrap, written, clock), OutputTopicReader(bootstrap)
        simulator.create_shop()
        index = servers.folder / "state" / "search" / "products"
        watch = CheckMonitor(
            simulator, outputs, ExternalReader(read, servers.cache.url, index, servers.mailbox)
        )
        workers = (
            stack.enter_context(Worker("keep_stock", bootstrap)),
            stack.enter_context(Worker("send_mails", bootstrap, servers.mailbox.address)),
        )
        stack.callback(simulator.close)
        for thread in (outputs, watch):
            thread.start()
            stack.callback(thread.close)
        live = PageState(simulator, outputs, watch, servers.mailbox, clock)
        return Shop(simulator=simulator, watch=watch, workers=workers, live=live)


def make_topics(bootstrap: str, app: App, names: Sequence[str] = (*INPUTS, *OUTPUTS)) -> None:
    """Create all topics of a scenario, each with one partition, before the jobs start."""
    configs = {topic.name: topic.config for job in app.jobs for topic in job.into.topics}
    topics = [NewTopic(name=name, partitions=1, configs=configs.get(name, {})) for name in names]
    with Cluster.of(bootstrap) as cluster:
        create_topics(cluster, topics)


def set_variables(stack: ExitStack, variables: Mapping[str, str]) -> None:
    """Set environment variables until the stack is closed."""
    for name, value in variables.items():
        stack.callback(_set_variable, name, os.environ.get(name))
        os.environ[name] = value


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class Phase(Enum):
    """The phase of a scenario."""

    WAITING = auto()
    WARMING = auto()
    RUNNING = auto()
    DRAINING = auto()
    DONE = auto()


class DemoDisplay(Board):
    """The live display of a scenario, which also starts its phases."""

    def __init__(self, console: Console) -> None:
        self._phase = Phase.WAITING
        self._since_s = time.monotonic()
        self.stop: Callable[[], None] = lambda: None
        """Stops the run; set when the run starts."""
        super().__init__(console)

    @property
    def is_over(self) -> bool:
        """Whether the scenario is complete."""
        return self._phase is Phase.DONE

    def show(self, reports: Sequence[Report]) -> None:
        """Show the reports, and start the next phase if it is due."""
        super().show(reports)
        self._direct(time.monotonic() - self._since_s)

    @abstractmethod
    def _direct(self, passed_s: float) -> None:
        """Run the next step, given the time since the phase began."""

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since_s = phase, time.monotonic()

    def _end(self, text: str) -> None:
        self.say(text)
        self._enter(Phase.DONE)
        self.stop()


TIMEOUT_S: Final = 180.0


class ShopDisplay(DemoDisplay):
    """The live display of the scenario `shop`."""

    def __init__(
        self, console: Console, shop: Shop, chaos: Chaos | None, *, begin_s: float, seconds: float
    ) -> None:
        self._shop = shop
        self._chaos = chaos
        self._begin_s = begin_s
        self._seconds = seconds
        super().__init__(console)  # last, because it draws the first picture

    def say(self, text: str) -> None:
        """Print a line in the terminal and on the web page."""
        super().say(text)
        self._shop.live.news = text

    def show(self, reports: Sequence[Report]) -> None:
        """Show the reports, and start the next phase if it is due."""
        self._shop.live.reports = reports
        super().show(reports)

    def _direct(self, passed_s: float) -> None:
        for worker in self._shop.workers:
            worker.restart_if_ended()
        watch = self._shop.watch
        match self._phase:
            case Phase.WAITING:  # the database is captured now: what changes from here on has its history
                self._shop.simulator.start()
                self.say("The shop is open: customers order, pay and click.")
                self._enter(Phase.WARMING)
            case Phase.WARMING if watch.results and watch.results[0].found:
                self.say(
                    f"The first results arrived {time.monotonic() - self._begin_s:.0f} s after the start."
                )
                self._enter(Phase.RUNNING)
            case Phase.WARMING if passed_s > TIMEOUT_S:
                self._end("There are no results: see the lines above for the reason.")
            case Phase.RUNNING if passed_s > self._seconds and (not self._chaos or self._chaos.is_through):
                self._close_shop()
            case Phase.RUNNING:
                self._kill_one()
            case Phase.DRAINING if watch.is_complete:
                self._end(f"All that happened has come out, {passed_s:.0f} s later.")
            case Phase.DRAINING if passed_s > TIMEOUT_S:
                self._end("Some results are missing or wrong: the check lists them.")

    def _kill_one(self) -> None:
        report = self._chaos.kill_next() if self._chaos is not None else None
        if report is not None:
            self.say(report)

    def _close_shop(self) -> None:
        self._shop.simulator.close()
        self.say("The shop is closed, and a night passes; the jobs process the remaining records.")
        self._enter(Phase.DRAINING)

    def _picture(self) -> RenderableType:
        return Group(super()._picture(), check_table(self._shop.watch.results))


def check_table(results: Sequence[CheckResult]) -> RenderableType:
    """The checks as a table: expected, found and wrong results."""
    picture = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    picture.add_column("check", no_wrap=True)
    for heading in ("happened", "came out", "wrong"):
        picture.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        style = "red" if each.wrong else "green" if each.holds else ""
        picture.add_row(
            Text(each.claim, style=style), f"{each.expected:,}", f"{each.found:,}", f"{each.wrong:,}"
        )
    return picture


MIN_SECONDS: Final = 5.0


class ShopDemo:
    """One run of the scenario."""

    def __init__(self, console: Console, seconds: float, *, chaos: bool = False, port: int = 0) -> None:
        self._console = console
        self._chaos = chaos
        self._port = port
        self._seconds = max(seconds, MIN_SECONDS)
        postgres.find_program("initdb")  # report missing programs before anything starts
        redis.find_program()

    def run(self) -> bool:
        """Run the scenario. Returns whether all checks passed."""
        begin_s = time.monotonic()
        with ExitStack() as stack:
            servers = DemoServers.open(stack)
            self._say(
                "A broker, a PostgreSQL, a Redis and a mail server are up after "
                f"{time.monotonic() - begin_s:.1f} s. Spark starts; that takes some seconds …"
            )
            app = load_app(PIPELINE)
            make_topics(servers.broker.bootstrap, app)
            shop = Shop.open(stack, servers)
            page = stack.enter_context(page_gateway(servers.broker.bootstrap, shop.live.document, self._port))
            self._say(f"The page to watch is {page.url}")
            console = GatewayProcess(
                "127.0.0.1:0",
                servers.broker.bootstrap,
                str(servers.folder / "state"),
                module="headrace.console",
            )
            shop.live.console = stack.enter_context(console).url
            self._say(f"The console is at {shop.live.console}")
            return self._run_scenario(servers, shop, app, begin_s)

    def _run_scenario(self, servers: DemoServers, shop: Shop, app: App, begin_s: float) -> bool:
        chaos = Chaos(servers, shop.workers) if self._chaos else None
        stage = ShopDisplay(self._console, shop, chaos, begin_s=begin_s, seconds=self._seconds)
        runner = Runner(
            RunOptions(app=app, broker=servers.broker.bootstrap, state=servers.folder / "state"), stage
        )
        stage.stop = runner.stop
        if chaos is not None:
            chaos.add("the capture", partial(kill_captures, runner))
        code = runner.run()
        if not stage.is_over:
            self._say("It was stopped before its end: there are no results to check.")
            return code == 0
        shop.watch.close()
        shop.watch.update()
        return self._check(shop, code)

    def _check(self, shop: Shop, code: int) -> bool:
        claims = {f"{each.expected:,} {each.claim}": each.holds for each in shop.watch.results}
        held = print_results(self._console, {**claims, "no job gave up": code == 0})
        self._say(
            "\nAll of it is one file: `headrace demo --pipeline`; docs/demo.md walks through it. Begin your "
            "own with `headrace init NAME`."
        )
        return held

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)
