"""The page of the demo over HTTP."""

import itertools
import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from headrace.demo.page_server import page_gateway
from headrace.testing import EmbeddedBroker
from tests.demo.browser import Browser


def test_the_page_comes_with_its_parts_and_loads_nothing_from_elsewhere(
    headrace_broker: EmbeddedBroker,
) -> None:
    with page_gateway(headrace_broker.bootstrap, dict) as page:
        with urlopen(page.url) as answer:
            text = answer.read().decode()
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        for part in ("page.css", "page.js"):
            assert part in text
            with urlopen(f"{page.url}/{part}") as answer:
                assert len(answer.read()) > 1000
        assert "http" not in text


def test_the_state_is_told_again_and_again(headrace_broker: EmbeddedBroker) -> None:
    counts = iter(range(100))
    page = page_gateway(headrace_broker.bootstrap, lambda: {"count": next(counts)})
    with page, urlopen(f"{page.url}/live") as answer:
        lines = [answer.readline() for _ in range(8)]
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    assert events[:2] == [{"count": 0}, {"count": 1}]


def test_a_view_that_is_not_there_is_told_as_such(headrace_broker: EmbeddedBroker) -> None:
    with page_gateway(headrace_broker.bootstrap, dict) as page, pytest.raises(HTTPError) as error:
        urlopen(f"{page.url}/changes/nothing")
    assert error.value.code == 404
    error.value.close()


@pytest.mark.browser
def test_a_browser_shows_the_state_as_it_changes(headrace_broker: EmbeddedBroker, tmp_path: Path) -> None:
    counts = itertools.count(5)
    lists: dict[str, list[str]] = {"newest_mails": [], "results": [], "jobs": []}
    numbers = dict.fromkeys(("customers", "unpaid", "waiting", "late", "mails", "dead"), 0)

    def state() -> dict[str, object]:
        return {"clock": "10:00", "news": "", "paid": next(counts), "rates": {}, **lists, **numbers}

    shown = "Number(document.querySelector('#paid').textContent)"
    with page_gateway(headrace_broker.bootstrap, state) as page, Browser(tmp_path / "browser") as browser:
        browser.open_when_there(page.url, within_s=60)
        first = browser.wait(shown)
        assert browser.wait(shown, lambda value: value > first) > first
