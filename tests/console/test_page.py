"""The page of the console in a real browser."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import EmbeddedBroker
from tests.console.shop import JOB, RunningJob, console
from tests.demo.browser import Browser

pytestmark = pytest.mark.browser

OpenPage = Callable[..., "Page"]


class Page:
    """A page of the console, and what a user does with it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self._url = url

    def go(self, path: str) -> None:
        self.browser.value(f"location.hash = '#/{path}'")

    def text(self, selector: str = "main") -> str:
        return self.browser.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def await_text(self, *texts: str, selector: str = "main") -> str:
        shown = f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"
        return self.browser.wait(shown, lambda value: all(text in value for text in texts))

    def await_value(self, expression: str) -> Any:
        return self.browser.wait(expression)

    def click(self, text: str, within: str = "main") -> None:
        self.browser.wait(
            f"[...document.querySelectorAll('{within} button, {within} a')]"
            f".some(each => each.textContent.trim() === {json.dumps(text)} && !each.disabled "
            "&& (each.click(), true))"
        )

    def fill(self, name: str, text: str, within: str = "dialog") -> None:
        self.await_value(f"document.querySelector('{within} [name={name}]')?.focus() === undefined")
        self.browser.write(text)


@pytest.fixture
def open_page(kafka: EmbeddedBroker, url: str, tmp_path: Path) -> Iterator[OpenPage]:
    opened: list[Browser] = []

    def make(path: str = "", address: str = url, **options: Any) -> Page:
        browser = Browser(tmp_path / f"browser-{len(opened)}", **options)
        opened.append(browser)
        browser.open_when_there(f"{address}/#/{path}", within_s=60)
        return Page(browser, address)

    yield make
    for browser in opened:
        browser.close()


@contextmanager
def running(kafka: EmbeddedBroker) -> Iterator[RunningJob]:
    """A job that runs in another thread."""
    job, ended = RunningJob(kafka.bootstrap), threading.Event()

    def turn() -> None:
        while not ended.wait(0.1):
            job.turn()

    thread = threading.Thread(target=turn)
    with job.status:
        thread.start()
        yield job
        ended.set()
        thread.join()


def test_messages_are_filtered_opened_and_produced(open_page: OpenPage) -> None:
    page = open_page("topics")
    page.await_text("orders", "mails")
    page.click("orders")
    page.await_text("50 shown")
    page.fill("filter", "product=tea n<20", within="main")
    page.browser.press("Enter")
    page.await_text("5 shown of 120")
    page.browser.value("document.querySelector('main tbody button').click()")
    page.await_text('"amount": 20', "t16")
    page.click("Produce")
    page.fill("key", "new")
    page.fill("value", '{"product": "milk"}')
    page.fill("headers", "trace: t-new")
    page.click("Produce", within="dialog")
    page.await_text("Stored at", selector="#toast")
    page.fill("filter", "key=new", within="main")
    page.browser.press("Enter")
    page.await_text("1 shown", "trace=t-new", "milk")


def test_a_new_message_appears_without_a_reload(open_page: OpenPage, client: Any) -> None:
    page = open_page("topics/mails")
    page.await_text("shown")
    page.browser.value("[...document.querySelectorAll('main label.line input')][0].click()")
    # The stream starts at the end of the topic, which is when it is open.
    page.await_value(
        "fetch('/api/topics/mails/messages', {method: 'POST', headers: {'content-type': 'application/json'}, "
        "body: JSON.stringify({value: 'hello, live'})}) && "
        "document.querySelector('main').textContent.includes('hello, live')"
    )


def test_groups_show_lag_and_members(open_page: OpenPage) -> None:
    page = open_page("groups")
    page.await_text("billing", "empty")
    page.click("billing")
    page.await_text("No consumer runs", "Lag")


def test_dead_letters_are_redriven(open_page: OpenPage) -> None:
    page = open_page("queues/mailer")
    page.await_text("Offset rejected by client.")
    page.click("Redrive …")
    page.click("Redrive", within="dialog")
    page.await_text("went back to mails", selector="#toast")
    page.await_text("There are no dead letters")


def test_a_job_has_a_graph_and_is_reset_after_its_name_is_typed(
    kafka: EmbeddedBroker, open_page: OpenPage
) -> None:
    with running(kafka) as job:
        page = open_page("jobs")
        page.click("revenue")
        page.await_text("window-1", "Compute and write 80 ms", "4 rows")
        assert page.browser.value("document.querySelectorAll('.graph .node').length") == 5
        page.click("Reset …")
        page.fill("confirm", "revenue")
        assert page.browser.value("document.querySelector('dialog [type=submit]').disabled") is True
        page.fill("confirm", JOB)
        page.click("Reset", within="dialog")
        page.await_text("was reset, and runs again", selector="#toast")
        assert job.run.calls == ["start", ("reset", {"kind": "start", "value": 0}), "start"]


def test_the_overview_connects_what_runs(kafka: EmbeddedBroker, open_page: OpenPage) -> None:
    with running(kafka):
        page = open_page()
        page.await_text("orders", "revenue", "billing", "mailer", "shop.Cart")
        boxes = page.browser.value(
            "[...document.querySelectorAll('.graph .box')].map(each => each.getBoundingClientRect())"
            ".map(({left, right, top, bottom}) => [left, right, top, bottom])"
        )
    for number, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:number]:
            assert right <= other[0] or left >= other[1] or bottom <= other[2] or top >= other[3]


def test_rows_of_a_view_and_the_state_of_an_aggregate_are_shown(open_page: OpenPage) -> None:
    page = open_page("views/revenue")
    page.await_text("cocoa", "207")
    page.go("aggregates/shop.Cart?id=cart-1")
    page.await_text("State now, version 3", '"cocoa": 1')
    page.browser.value(
        "[...document.querySelectorAll('main button')]"
        ".filter(each => each.textContent === 'State here')[1].click()"
    )
    page.await_text("State at version 2 of 3")
    assert '"cocoa": 1' not in page.text("main .panel")


def test_the_keyboard_is_enough(open_page: OpenPage) -> None:
    page = open_page()
    page.await_value("document.querySelector('#nav a[aria-current]') !== null")
    for key in "gt":
        page.browser.press(key)
    page.await_text("orders", "Create topic")
    page.browser.press("/")
    page.browser.write("order")
    page.browser.press("Escape")
    page.browser.press("j")
    page.browser.press("Enter")
    page.await_text("Newest first")
    page.browser.press("n")
    page.await_text("Produce to orders", selector="dialog")
    page.browser.value("document.querySelector('dialog').close()")
    page.await_value("document.querySelector('dialog') === null")
    page.browser.press("u")
    page.await_text("Create topic")
    page.browser.press("?")
    page.await_text("Next row", selector="dialog")


@pytest.mark.parametrize("dark", [False, True])
def test_every_page_fits_a_phone_in_light_and_dark(open_page: OpenPage, dark: bool) -> None:
    page = open_page(width=390, height=844, dark=dark)
    for path in ("", "topics", "topics/orders", "groups/billing", "queues/mailer", "jobs", "brokers"):
        page.go(path)
        page.await_value("document.querySelector('main h1') && !document.querySelector('.loading')")
        assert page.browser.value("document.documentElement.scrollWidth <= innerWidth"), path
    ground = page.browser.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(16, 21, 27)" if dark else "rgb(246, 247, 249)")
    page.browser.value("document.querySelector('#menu').click()")
    page.await_value("document.querySelector('#nav').offsetParent !== null")


def test_a_read_only_console_offers_no_changes(kafka: EmbeddedBroker, open_page: OpenPage) -> None:
    with console(kafka.bootstrap, read_only=True) as address:
        page = open_page("topics/orders", address=address)
        page.await_text("50 shown")
        page.await_text("read-only", selector="#user")
        page.go("queues/mailer")
        page.await_text("Partitions")
        offered = page.browser.value("[...document.querySelectorAll('button')].map(each => each.textContent)")
    assert not {"Produce", "Redrive …", "Create topic", "Reset …"} & set(offered)


def test_what_does_not_exist_is_said_on_the_page(open_page: OpenPage) -> None:
    page = open_page("topics/nope")
    page.await_text("topic 'nope' does not exist")
    page.go("nowhere")
    page.await_text("There is no such page")
