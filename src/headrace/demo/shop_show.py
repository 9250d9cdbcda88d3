"""The shop, played: servers, world, jobs, workers, and a check that nothing is lost or doubled."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.demo.chaos import Chaos, kill_captures
from headrace.demo.findings import print_findings
from headrace.demo.page_server import Page
from headrace.demo.shop import Shop, Site, make_topics
from headrace.demo.shop_stage import ShopStage
from headrace.demo.worker import PIPELINE
from headrace.streams.pipeline import load_app
from headrace.streams.runner import Order, Runner
from headrace.testing import postgres, redis

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.streams.app import App

LEAST_SECONDS: Final = 5.0


class ShopShow:
    """One performance."""

    def __init__(self, console: Console, seconds: float, *, chaos: bool = False, port: int = 0) -> None:
        self._console = console
        self._chaos = chaos
        self._port = port
        self._seconds = max(seconds, LEAST_SECONDS)
        postgres.find_program("initdb")  # what is not installed is said before anything is played
        redis.find_program()

    def run(self) -> bool:
        """Play; whether the check at the end held."""
        begin_s = time.monotonic()
        with ExitStack() as stack:
            site = Site.open(stack)
            self._say(
                "A broker, a PostgreSQL, a Redis and a mail server are up after "
                f"{time.monotonic() - begin_s:.1f} s. Spark starts; that takes some seconds …"
            )
            app = load_app(PIPELINE)
            make_topics(site.broker.bootstrap, app)
            shop = Shop.open(stack, site)
            page = stack.enter_context(Page(site.broker.bootstrap, shop.live.document, self._port))
            self._say(f"The page to watch is {page.url}")
            return self._play(site, shop, app, begin_s)

    def _play(self, site: Site, shop: Shop, app: App, begin_s: float) -> bool:
        chaos = Chaos(site, shop.workers) if self._chaos else None
        stage = ShopStage(self._console, shop, chaos, begin_s=begin_s, seconds=self._seconds)
        runner = Runner(Order(app=app, broker=site.broker.bootstrap, state=site.folder / "state"), stage)
        stage.stop = runner.stop
        if chaos is not None:
            chaos.add("the capture", partial(kill_captures, runner))
        code = runner.run()
        if not stage.is_over:
            self._say("It was stopped before its end, so there is nothing to check.")
            return code == 0
        shop.watch.close()
        shop.watch.look()
        return self._check(shop, code)

    def _check(self, shop: Shop, code: int) -> bool:
        claims = {f"{each.expected:,} {each.claim}": each.holds for each in shop.watch.findings}
        held = print_findings(self._console, {**claims, "no job gave up": code == 0})
        self._say(
            "\nAll of it is one file: `headrace demo --pipeline`; docs/demo.md walks through it. Begin your "
            "own with `headrace init NAME`."
        )
        return held

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)
