"""Rows of views by key and by columns."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.feeds.view_writer import ViewWriter


def test_a_row_is_found_by_its_key_as_soon_as_it_is_committed(client: httpx.Client, view: ViewWriter) -> None:
    path = f"/views/{view.name}/a"
    assert client.get(path).status_code == 404
    view.write(("a", 1), ("b", 2))
    assert client.get(path).json() == {"id": "a", "n": 1}
    view.write(("a", 3))
    assert client.get(path).json() == {"id": "a", "n": 3}
    view.abort(("a", 4))
    assert client.get(path).json() == {"id": "a", "n": 3}
    view.write(("a", None))
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("key", ["a/b", "a b", "ä", 'a"', "a%2Fb", "a?b#c"])
def test_any_text_can_be_a_key(client: httpx.Client, view: ViewWriter, key: str) -> None:
    view.write((key, 1))
    assert client.get(f"/views/{view.name}/{quote(key, safe='')}").json() == {"id": key, "n": 1}


def test_rows_are_selected_by_columns_up_to_a_limit(client: httpx.Client, view: ViewWriter) -> None:
    view.write(*((f"a{number}", number % 2) for number in range(6)))
    path = f"/views/{view.name}"
    found = client.get(path, params={"n": 1}).json()
    assert ({row["id"] for row in found["rows"]}, found["complete"]) == ({"a1", "a3", "a5"}, True)
    assert client.get(path, params={"n": 1, "id": "a3"}).json()["rows"] == [{"id": "a3", "n": 1}]
    limited = client.get(path, params={"limit": 4}).json()
    assert (len(limited["rows"]), limited["complete"]) == (4, False)
    assert client.get(path, params={"id": "nothing"}).json() == {"rows": [], "complete": True}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "limit=-1", "price=1"])
def test_a_query_that_is_none_is_refused(client: httpx.Client, view: ViewWriter, query: str) -> None:
    answer = client.get(f"/views/{view.name}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_view_that_does_not_exist_is_answered_with_404(client: httpx.Client) -> None:
    for path in ("/views/nothing", "/views/nothing/a"):
        assert client.get(path).status_code == 404


def test_a_view_that_was_created_again_has_its_new_rows(client: httpx.Client, view: ViewWriter) -> None:
    view.write(("a", 1), ("b", 1))
    assert len(client.get(f"/views/{view.name}").json()["rows"]) == 2
    view.delete()
    view.create()
    view.write(("b", 2))
    assert client.get(f"/views/{view.name}").json()["rows"] == [{"id": "b", "n": 2}]


def test_new_partitions_are_read(client: httpx.Client, new_view: Callable[..., ViewWriter]) -> None:
    view = new_view(partitions=1)
    view.write(("a", 1))
    assert len(client.get(f"/views/{view.name}").json()["rows"]) == 1
    view.grow(3)
    view.write(("b", 2), ("c", 3))
    rows: list[Any] = client.get(f"/views/{view.name}").json()["rows"]
    assert sorted(row["id"] for row in rows) == ["a", "b", "c"]


def test_a_record_that_is_no_row_is_left_out(client: httpx.Client, view: ViewWriter) -> None:
    view.write(("a", 1))
    view.write_raw("b", b"not a row")
    view.write_raw("c", b'{"n": 1}')
    assert client.get(f"/views/{view.name}").json()["rows"] == [{"id": "a", "n": 1}]
