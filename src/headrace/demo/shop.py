"""The parts of the scenario `shop`: its servers, simulator, workers and checks."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.demo.checks import CheckMonitor
from headrace.demo.database import ShopDatabase
from headrace.demo.mail_server import DemoMailServer
from headrace.demo.outputs import INPUTS, OUTPUTS, ExternalReader, OutputTopicReader
from headrace.demo.page_server import PageState
from headrace.demo.simulator import ShopClock, ShopSimulator
from headrace.demo.worker import Worker
from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer

if TYPE_CHECKING:
    from contextlib import ExitStack

    from headrace.streams.app import App


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
        for name, value in {"HEADRACE_POSTGRES": servers.url, "HEADRACE_REDIS": servers.cache.url}.items():
            stack.callback(_set_variable, name, os.environ.get(name))
            os.environ[name] = value
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


def make_topics(bootstrap: str, app: App) -> None:
    """Create all topics of the demo, each with one partition, before the jobs start."""
    configs = {topic.name: topic.config for job in app.jobs for topic in job.into.topics}
    topics = [
        NewTopic(name=name, partitions=1, configs=configs.get(name, {})) for name in (*INPUTS, *OUTPUTS)
    ]
    with Cluster.of(bootstrap) as cluster:
        create_topics(cluster, topics)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
