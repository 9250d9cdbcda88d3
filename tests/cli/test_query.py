"""`headrace query`: SQL over views and topics."""

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.cli.terminal import Terminal
from tests.feeds.view_writer import ViewWriter

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def shelf(spark: SparkSession, terminal: Terminal) -> Iterator[ViewWriter]:
    """A view with two rows, one of which was changed, and a third that was deleted."""
    shelf = ViewWriter(terminal.bootstrap)
    shelf.write(("a", 1), ("b", 5), ("a", 2), ("c", 7))
    shelf.write(("c", None))
    shelf.abort(("a", 666))
    yield shelf
    shelf.delete()


@pytest.fixture
def orders(terminal: Terminal, topic: str) -> str:
    """A topic with two orders and a garbled one."""
    lines = ['{"id": "a", "amount": 2.5}', "garbled", '{"id": "z", "amount": 1}']
    terminal.do("produce", topic, stdin="\n".join(lines) + "\n")
    return topic


def test_a_view_is_its_current_rows(terminal: Terminal, shelf: ViewWriter) -> None:
    outcome = terminal.do("query", f"SELECT id, n FROM `{shelf.name}` ORDER BY id")
    assert [line.split() for line in outcome.lines] == [["id", "n"], ["a", "2"], ["b", "5"]]
    assert "2 rows in " in outcome.err
    assert terminal.do("query", f"SELECT sum(n) total FROM `{shelf.name}`", "--json").json == [{"total": 7}]


def test_views_and_topics_can_be_joined(terminal: Terminal, shelf: ViewWriter, orders: str) -> None:
    sql = f"""WITH o AS (SELECT * FROM {orders})
              SELECT o.id, amount * n AS paid FROM o JOIN `{shelf.name}` s ON o.id = s.id"""
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
    terminal: Terminal, shelf: ViewWriter, sql: str, code: int, message: str
) -> None:
    outcome = terminal.run("query", sql)
    assert outcome.code == code
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_schema_that_is_none_is_refused_before_spark_starts(terminal: Terminal) -> None:
    for option, message in [("orders", "is not TOPIC=FIELDS"), ("nothing=a int", "no topic named 'nothing'")]:
        outcome = terminal.run("query", "SELECT 1", "--schema", option)
        assert (outcome.code, message in outcome.err) == (2, True)
