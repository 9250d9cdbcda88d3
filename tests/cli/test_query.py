"""`headrace view`, `headrace changes` and `headrace query`."""

import json
import signal
from collections.abc import Iterator
from typing import IO

import pytest
from pyspark.sql import SparkSession

from tests.cli.terminal import Terminal, interrupt
from tests.cli.test_options import completed
from tests.feeds.view_writer import ViewWriter

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def changing_view(terminal: Terminal) -> Iterator[ViewWriter]:
    """A view with two rows."""
    changing_view = ViewWriter(terminal.bootstrap, partitions=1)
    changing_view.write(("a", 1), ("b", 1), ("a", 2))
    yield changing_view
    changing_view.delete()


def test_the_rows_of_a_view_are_printed(terminal: Terminal, changing_view: ViewWriter) -> None:
    assert terminal.do("changes", changing_view.name).lines == [
        'row    {"id": "b", "n": 1}',
        'row    {"id": "a", "n": 2}',
    ]


def test_an_empty_view_is_said_to_be_empty(terminal: Terminal, changing_view: ViewWriter) -> None:
    changing_view.write(("a", None), ("b", None))
    outcome = terminal.do("changes", changing_view.name)
    assert outcome.out == ""
    assert outcome.err == f"the view {changing_view.name} has no rows yet; --follow waits for them\n"


def test_printing_goes_on_after_a_token(terminal: Terminal, changing_view: ViewWriter) -> None:
    first, second = map(json.loads, terminal.do("changes", changing_view.name, "--json").lines)
    assert (first["kind"], first["key"], first["row"]) == ("row", {"id": "b"}, {"id": "b", "n": 1})
    changing_view.write(("b", None), ("c", 1))
    assert terminal.do("changes", changing_view.name, "--since", first["token"]).lines == [
        'row    {"id": "a", "n": 2}',
        'delete {"id":"b"}',
        'upsert {"id": "c", "n": 1}',
    ]
    assert len(terminal.do("changes", changing_view.name, "--since", second["token"]).lines) == 2


def lines_of(output: IO[bytes] | None) -> Iterator[str]:
    assert output is not None
    return (line.decode().rstrip("\n") for line in output)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_view_is_followed_until_ctrl_c(terminal: Terminal, changing_view: ViewWriter, number: int) -> None:
    process = terminal.start("changes", changing_view.name, "--follow")
    lines = lines_of(process.stdout)
    assert [next(lines), next(lines)] == ['row    {"id": "b", "n": 1}', 'row    {"id": "a", "n": 2}']
    changing_view.write(("a", 3))
    assert next(lines) == 'upsert {"id": "a", "n": 3}'
    code, _, errors = interrupt(process, number)
    assert (code, errors) == (130, b"")


def test_views_are_listed(terminal: Terminal, changing_view: ViewWriter) -> None:
    lines = terminal.do("view", "list").lines
    assert lines[0].split() == ["view", "key", "columns", "job"]
    assert any(line.split() == [changing_view.name, "id", "id,", "n", "test.shelf"] for line in lines)
    listed = terminal.do("view", "list", "--json").json
    assert [view["key"] for view in listed if view["name"] == changing_view.name] == [["id"]]


def test_views_are_completed_from_the_broker(terminal: Terminal, changing_view: ViewWriter) -> None:
    assert completed(terminal.bootstrap, "headrace", "changes", changing_view.name[:-2]) == (
        [changing_view.name],
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 1, "the view 'nothing' does not exist"),
        ([], 2, "name a view"),
        (["{view}", "--since", "x"], 2, "not a token"),
    ],
)
def test_what_stands_in_the_way_is_said(
    terminal: Terminal, changing_view: ViewWriter, arguments: list[str], code: int, message: str
) -> None:
    outcome = terminal.run(
        "changes", *(argument.replace("{view}", changing_view.name) for argument in arguments)
    )
    assert outcome.code == code
    assert outcome.err.startswith("error: ")
    assert message in outcome.err


@pytest.fixture
def queried_view(spark: SparkSession, terminal: Terminal) -> Iterator[ViewWriter]:
    """A view with two rows, one of which was changed, and a third that was deleted."""
    queried_view = ViewWriter(terminal.bootstrap)
    queried_view.write(("a", 1), ("b", 5), ("a", 2), ("c", 7))
    queried_view.write(("c", None))
    queried_view.abort(("a", 666))
    yield queried_view
    queried_view.delete()


@pytest.fixture
def orders(terminal: Terminal, topic: str) -> str:
    """A topic with two orders and a garbled one."""
    lines = ['{"id": "a", "amount": 2.5}', "garbled", '{"id": "z", "amount": 1}']
    terminal.do("produce", topic, stdin="\n".join(lines) + "\n")
    return topic


def test_a_view_is_its_current_rows(terminal: Terminal, queried_view: ViewWriter) -> None:
    outcome = terminal.do("query", f"SELECT id, n FROM `{queried_view.name}` ORDER BY id")
    assert [line.split() for line in outcome.lines] == [["id", "n"], ["a", "2"], ["b", "5"]]
    assert "2 rows in " in outcome.err
    assert terminal.do("query", f"SELECT sum(n) total FROM `{queried_view.name}`", "--json").json == [
        {"total": 7}
    ]


def test_views_and_topics_can_be_joined(terminal: Terminal, queried_view: ViewWriter, orders: str) -> None:
    sql = f"""WITH o AS (SELECT * FROM {orders})
              SELECT o.id, amount * n AS paid FROM o JOIN `{queried_view.name}` s ON o.id = s.id"""
    outcome = terminal.do("query", sql, "--schema", f"{orders}=id string, amount double", "--json")
    assert outcome.json == [{"id": "a", "paid": 5.0}]


def test_a_topic_is_its_records(terminal: Terminal, spark: SparkSession, orders: str) -> None:
    sql = f"SELECT offset, value, key, timestamp > '2020-01-01' AS fresh FROM {orders} ORDER BY offset"
    rows = terminal.do("query", sql, "--json").json
    assert rows[1] == {"offset": 1, "value": "garbled", "key": None, "fresh": True}
    outcome = terminal.do("query", sql, "--limit", "1")
    assert len(outcome.lines) == 2
    assert "the first 1 rows" in outcome.err
    typed = f"SELECT id, _offset, _timestamp IS NOT NULL AS timed FROM {orders} WHERE amount < 2"
    (row,) = terminal.do("query", typed, "--schema", f"{orders}=id string, amount double", "--json").json
    assert row == {"id": "z", "_offset": 2, "timed": True}


def test_values_of_all_types_are_printed(terminal: Terminal, spark: SparkSession) -> None:
    sql = """SELECT timestamp '2026-01-01 10:00:00' t, date '2026-01-02' d, 1.5BD b, array(1, 2) a,
                    named_struct('x', 1) s"""
    (row,) = terminal.do("query", sql, "--json").json
    assert row == {
        "t": "2026-01-01T10:00:00.000000Z",
        "d": "2026-01-02",
        "b": "1.5",
        "a": [1, 2],
        "s": {"x": 1},
    }
    assert json.loads(terminal.do("query", sql).lines[1].split("  ")[-1]) == {"x": 1}


@pytest.mark.parametrize(
    ("sql", "code", "message"),
    [
        ("SELECT * FROM nowhere", 2, "there is no view and no topic named 'nowhere'"),
        ("SELECT * FROM orders.dead", 2, "in backticks: `orders.dead`"),
        ("SELEC 1", 1, "Spark cannot answer: Syntax error"),
        ("SELECT nonsense FROM `headrace.views`", 1, "nonsense"),
        ("SELECT 1/0", 1, "Division by zero"),
    ],
)
def test_what_stands_in_the_way_is_said_in_one_line(
    terminal: Terminal, queried_view: ViewWriter, sql: str, code: int, message: str
) -> None:
    outcome = terminal.run("query", sql)
    assert outcome.code == code
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_schema_that_is_none_is_refused_before_spark_starts(terminal: Terminal) -> None:
    for option, message in [("orders", "is not TOPIC=FIELDS"), ("nothing=a int", "no topic named 'nothing'")]:
        outcome = terminal.run("query", "SELECT 1", "--schema", option)
        assert (outcome.code, message in outcome.err) == (2, True)
