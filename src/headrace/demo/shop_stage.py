"""The shop in a terminal: the jobs, the check, and who says what happens next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.demo.stage import Phase, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from headrace.demo.chaos import Chaos
    from headrace.demo.checks import Finding
    from headrace.demo.shop import Shop
    from headrace.streams.report import Report

PATIENCE_S: Final = 180.0


class ShopStage(Stage):
    """The live picture, and its director."""

    def __init__(
        self, console: Console, shop: Shop, chaos: Chaos | None, *, begin_s: float, seconds: float
    ) -> None:
        self._shop = shop
        self._chaos = chaos
        self._begin_s = begin_s
        self._seconds = seconds
        super().__init__(console)  # last, because it draws the first picture

    def say(self, text: str) -> None:
        """Say it in the terminal, and on the page."""
        super().say(text)
        self._shop.live.news = text

    def show(self, reports: Sequence[Report]) -> None:
        """Show the figures, and play on."""
        self._shop.live.reports = reports
        super().show(reports)

    def _direct(self, passed_s: float) -> None:
        for worker in self._shop.workers:
            worker.look_after()
        watch = self._shop.watch
        match self._phase:
            case Phase.WAITING:  # the database is captured now: what changes from here on has its history
                self._shop.world.start()
                self.say("The shop is open: customers order, pay and click.")
                self._enter(Phase.WARMING)
            case Phase.WARMING if watch.findings and watch.findings[0].found:
                self.say(
                    f"The first results are there {time.monotonic() - self._begin_s:.0f} s after the start."
                )
                self._enter(Phase.RUNNING)
            case Phase.WARMING if passed_s > PATIENCE_S:
                self._end("There are no results: the lines above should say why.")
            case Phase.RUNNING if passed_s > self._seconds and (not self._chaos or self._chaos.is_through):
                self._close_shop()
            case Phase.RUNNING:
                self._do_harm()
            case Phase.DRAINING if watch.is_complete:
                self._end(f"All that happened has come out, {passed_s:.0f} s later.")
            case Phase.DRAINING if passed_s > PATIENCE_S:
                self._end("Something has not come out: the check says what.")

    def _do_harm(self) -> None:
        said = self._chaos.turn() if self._chaos is not None else None
        if said is not None:
            self.say(said)

    def _close_shop(self) -> None:
        self._shop.world.close()
        self.say("The shop is closed, and a night passes; the jobs finish what is left.")
        self._enter(Phase.DRAINING)

    def _picture(self) -> RenderableType:
        return Group(super()._picture(), check_table(self._shop.watch.findings))


def check_table(findings: Sequence[Finding]) -> RenderableType:
    """The check as a table: what is there of what has to be, and what is wrong, which is nothing."""
    picture = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    picture.add_column("check", no_wrap=True)
    for heading in ("happened", "came out", "wrong"):
        picture.add_column(heading, justify="right", no_wrap=True)
    for each in findings:
        style = "red" if each.wrong else "green" if each.holds else ""
        picture.add_row(
            Text(each.claim, style=style), f"{each.expected:,}", f"{each.found:,}", f"{each.wrong:,}"
        )
    return picture
