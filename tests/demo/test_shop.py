"""The shop of the demo is played to its end, with and without chaos, and seen in a browser."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from headrace.demo.shop import ShopDemo
from headrace.testing.postgres import free_port
from tests.demo.browser import Browser

CLAIMS = 10
END_S = 420
PARTS = (
    "the broker",
    "PostgreSQL",
    "Redis",
    "the capture",
    "every Python process of Spark",
    "the worker keep_stock",
    "the worker send_mails",
)


class Performance(threading.Thread):
    """The demo in a thread, so that a test can read its web page."""

    def __init__(self, seconds: float, *, chaos: bool = False) -> None:
        super().__init__(daemon=True)
        self.port = free_port()
        self.shown = io.StringIO()
        self.held: bool | None = None
        self._show = ShopDemo(Console(file=self.shown, width=100), seconds, chaos=chaos, port=self.port)

    def run(self) -> None:
        self.held = self._show.run()

    def check(self) -> None:
        """All claims held at its end."""
        assert self.held, self.shown.getvalue()
        assert self.shown.getvalue().count("✓") == CLAIMS


def number_of(selector: str) -> str:
    return f"Number(document.querySelector('{selector}').textContent.replaceAll(',', ''))"


@pytest.mark.browser
@pytest.mark.timeout(END_S)
def test_the_page_shows_what_happens_and_the_check_holds_in_the_end(tmp_path: Path) -> None:
    play = Performance(seconds=12)
    play.start()
    with Browser(tmp_path / "browser") as browser:
        browser.open_when_there(f"http://127.0.0.1:{play.port}/", within_s=60)
        paid = browser.wait(number_of("#paid"), within_s=180)
        assert browser.wait(number_of("#paid"), lambda value: value > paid) > paid  # it is live
        assert browser.wait("document.querySelectorAll('#revenue rect').length", within_s=60) > 0
        assert browser.wait("document.querySelectorAll('#spend rect').length", within_s=60) > 0
        assert browser.wait("document.querySelectorAll('.edge.flows').length", lambda count: count > 8)
        browser.wait(number_of("#mails"), within_s=60)
        assert browser.value("document.querySelectorAll('#check tr[data-state=wrong]').length") == 0
        (tmp_path / "page.png").write_bytes(browser.picture())
        browser.wait("document.querySelector('#verdict').dataset.state", "holds".__eq__, within_s=180)
    play.join()
    play.check()


@pytest.mark.demo
@pytest.mark.timeout(END_S)
def test_all_that_happened_has_come_out_once_in_the_end() -> None:
    play = Performance(seconds=12)
    play.run()
    play.check()


@pytest.mark.demo
@pytest.mark.timeout(END_S)
def test_nothing_is_lost_or_doubled_while_parts_are_killed() -> None:
    play = Performance(seconds=20, chaos=True)
    play.run()
    play.check()
    for part in PARTS:
        assert f"{part} was killed (kill -9)" in play.shown.getvalue()
