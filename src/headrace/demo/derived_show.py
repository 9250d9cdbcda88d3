"""A table of a real PostgreSQL changes, and an index, a cache and a view follow; the cache is killed."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.process import BrokerProcess
from headrace.capture.reading import read_records
from headrace.demo.catalogue import TABLE, TOPIC, VIEW, catalogue_app
from headrace.demo.copies import Viewed, cached, indexed
from headrace.demo.derived_stage import DerivedStage
from headrace.demo.findings import print_findings
from headrace.demo.storekeeper import Store, Storekeeper
from headrace.streams.runner import Order, Runner
from headrace.testing import postgres, redis
from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer

if TYPE_CHECKING:
    from rich.console import Console

LEAST_SECONDS: Final = 3.0


class DerivedShow:
    """One performance."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = max(seconds, LEAST_SECONDS)
        postgres.find_program("initdb")  # what is not installed is said before anything is played
        redis.find_program()

    def run(self) -> bool:
        """Play; whether the check at the end held."""
        begin = time.monotonic()
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            database = stack.enter_context(PostgresServer(folder)).create_database("shop")
            cache = stack.enter_context(RedisServer(folder / "redis"))
            broker = stack.enter_context(BrokerProcess(folder / "broker", attached=True))
            self._say(f"A PostgreSQL, a Redis and a broker are up after {time.monotonic() - begin:.1f} s.")
            return self._play(folder, database, cache, broker.bootstrap)

    def _play(self, folder: Path, database: str, cache: RedisServer, bootstrap: str) -> bool:
        index = folder / "index"
        storekeeper, viewed = Storekeeper(database), Viewed(bootstrap, VIEW)
        storekeeper.open_shop()
        viewed.start()
        store = Store(database)
        self._say(
            f"The table {TABLE} is captured. One job writes it into a search index and into Redis, another "
            "one keeps sums of it."
        )
        stage = DerivedStage(
            self._console, storekeeper, store, cache, index=index, viewed=viewed, seconds=self._seconds
        )
        app = catalogue_app(database, cache.url, index)
        runner = Runner(Order(app=app, broker=bootstrap, state=folder / "state"), stage)
        stage.stop = runner.stop
        try:
            code = runner.run()
            storekeeper.close()
            events = sum(value is not None for _, value in read_records(bootstrap, TOPIC))
            products = store.products()
            return print_findings(
                self._console,
                {
                    f"each of {storekeeper.changes} changes is an event in the log, once": (
                        events == storekeeper.changes
                    ),
                    "the search index is the table": indexed(index) == products,
                    "Redis is the table, across a crash of its own": cached(cache.url) == products,
                    "the view has the sums of the table": viewed.sums == store.sums(),
                    "no job failed": code == 0,
                },
            )
        finally:
            viewed.close()
            store.close()

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)
