"""`headrace changes` and `headrace view`: views on the command line and over HTTP."""

import json
import signal
from collections.abc import Iterator
from typing import IO

import pytest

from tests.cli.terminal import Terminal, interrupt
from tests.cli.test_options import completed
from tests.feeds.view_writer import ViewWriter


@pytest.fixture
def shelf(terminal: Terminal) -> Iterator[ViewWriter]:
    """A view with two rows."""
    shelf = ViewWriter(terminal.bootstrap, partitions=1)
    shelf.write(("a", 1), ("b", 1), ("a", 2))
    yield shelf
    shelf.delete()


def test_the_rows_of_a_view_are_printed(terminal: Terminal, shelf: ViewWriter) -> None:
    assert terminal.do("changes", shelf.name).lines == [
        'row    {"id": "b", "n": 1}',
        'row    {"id": "a", "n": 2}',
    ]


def test_an_empty_view_is_said_to_be_empty(terminal: Terminal, shelf: ViewWriter) -> None:
    shelf.write(("a", None), ("b", None))
    outcome = terminal.do("changes", shelf.name)
    assert outcome.out == ""
    assert outcome.err == f"the view {shelf.name} has no rows yet; --follow waits for them\n"


def test_printing_goes_on_after_a_token(terminal: Terminal, shelf: ViewWriter) -> None:
    first, second = map(json.loads, terminal.do("changes", shelf.name, "--json").lines)
    assert (first["kind"], first["key"], first["row"]) == ("row", {"id": "b"}, {"id": "b", "n": 1})
    shelf.write(("b", None), ("c", 1))
    assert terminal.do("changes", shelf.name, "--since", first["token"]).lines == [
        'row    {"id": "a", "n": 2}',
        'delete {"id":"b"}',
        'upsert {"id": "c", "n": 1}',
    ]
    assert len(terminal.do("changes", shelf.name, "--since", second["token"]).lines) == 2


def lines_of(output: IO[bytes] | None) -> Iterator[str]:
    assert output is not None
    return (line.decode().rstrip("\n") for line in output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_view_is_followed_until_ctrl_c(terminal: Terminal, shelf: ViewWriter, number: int) -> None:
    process = terminal.start("changes", shelf.name, "--follow")
    lines = lines_of(process.stdout)
    assert [next(lines), next(lines)] == ['row    {"id": "b", "n": 1}', 'row    {"id": "a", "n": 2}']
    shelf.write(("a", 3))
    assert next(lines) == 'upsert {"id": "a", "n": 3}'
    code, _, errors = interrupt(process, number)
    assert (code, errors) == (130, b"")


def test_views_are_listed(terminal: Terminal, shelf: ViewWriter) -> None:
    lines = terminal.do("view", "list").lines
    assert lines[0].split() == ["view", "key", "columns", "job"]
    assert any(line.split() == [shelf.name, "id", "id,", "n", "test.shelf"] for line in lines)
    listed = terminal.do("view", "list", "--json").json
    assert [view["key"] for view in listed if view["name"] == shelf.name] == [["id"]]


def test_views_are_completed_from_the_broker(terminal: Terminal, shelf: ViewWriter) -> None:
    assert completed(terminal.bootstrap, "headrace", "changes", shelf.name[:-2]) == ([shelf.name], "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 1, "the view 'nothing' does not exist"),
        ([], 2, "name a view"),
        (["{view}", "--since", "x"], 2, "not a token"),
    ],
)
def test_what_stands_in_the_way_is_said(
    terminal: Terminal, shelf: ViewWriter, arguments: list[str], code: int, message: str
) -> None:
    outcome = terminal.run("changes", *(argument.replace("{view}", shelf.name) for argument in arguments))
    assert outcome.code == code
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
