"""The demo's shop put together: the servers that it stands on, and who lives in it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.demo.clock import ShopClock
from headrace.demo.copies import CopyReader
from headrace.demo.database import ShopDatabase
from headrace.demo.live import Live
from headrace.demo.mailbox import Mailbox
from headrace.demo.outcome import INPUTS, OUTPUTS, Outcome
from headrace.demo.watch import Watch
from headrace.demo.worker import Worker
from headrace.demo.world import World
from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer

if TYPE_CHECKING:
    from contextlib import ExitStack

    from headrace.streams.app import App


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The servers, all on this machine."""

    folder: Path
    database: PostgresServer
    url: str
    cache: RedisServer
    broker: BrokerProcess
    mailbox: Mailbox

    @staticmethod
    def open(stack: ExitStack) -> Site:
        """Start them; the pipeline finds them by the environment."""
        temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        database = stack.enter_context(PostgresServer(folder))
        site = Site(
            folder=folder,
            database=database,
            url=database.create_database("shop"),
            cache=stack.enter_context(RedisServer(folder / "redis")),
            broker=stack.enter_context(BrokerProcess(folder / "broker", attached=True)),
            mailbox=stack.enter_context(Mailbox()),
        )
        for name, value in {"HEADRACE_POSTGRES": site.url, "HEADRACE_REDIS": site.cache.url}.items():
            stack.callback(_set_variable, name, os.environ.get(name))
            os.environ[name] = value
        return site


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The world around the shop, its workers, and who watches."""

    world: World
    watch: Watch
    workers: tuple[Worker, ...]
    live: Live

    @staticmethod
    def open(stack: ExitStack, site: Site) -> Shop:
        """Make the tables, and begin to work and to watch; the world waits for its `start`."""
        bootstrap, clock = site.broker.bootstrap, ShopClock()
        written, read = ShopDatabase(site.url), ShopDatabase(site.url)
        for database in (written, read):
            stack.callback(database.close)
        world, outcome = World(bootstrap, written, clock), Outcome(bootstrap)
        world.open_shop()
        index = site.folder / "state" / "search" / "products"
        watch = Watch(world, outcome, CopyReader(read, site.cache.url, index, site.mailbox))
        workers = (
            stack.enter_context(Worker("keep_stock", bootstrap)),
            stack.enter_context(Worker("send_mails", bootstrap, site.mailbox.address)),
        )
        stack.callback(world.close)
        for thread in (outcome, watch):
            thread.start()
            stack.callback(thread.close)
        live = Live(world, outcome, watch, site.mailbox, clock)
        return Shop(world=world, watch=watch, workers=workers, live=live)


def make_topics(bootstrap: str, app: App) -> None:
    """Make the topics that the demo reads itself, each of one partition, before anything runs."""
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
