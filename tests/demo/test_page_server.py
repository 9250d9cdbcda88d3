"""The page of the demo over HTTP."""

import json
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from headrace.demo.page_server import page_gateway
from headrace.testing import EmbeddedBroker


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
