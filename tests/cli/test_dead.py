"""Dead letters at the command line: listed, shown, and sent again."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tests.cli.terminal import Terminal
from tests.sinks.receiver import Receiver

PIPELINE = """
from headrace import App, sqlite

app = App("shop")
orders = app.stream("orders", "product string, amount int")
app.job(into=sqlite("sales", key="product", file={file!r}), name={job!r})(lambda: orders.df)
"""


def write(terminal: Terminal, topic: str, value: bytes, headers: dict[str, bytes | str]) -> None:
    producer = Producer({"bootstrap.servers": terminal.bootstrap})
    producer.produce(topic, value, key=b"k", headers=list(headers.items()))
    assert producer.flush(100) == 0


def refused(
    terminal: Terminal, topic: str, product: str, amount: int | None, *, target: str = "sqlite sales"
) -> None:
    row = pa.table({"product": [product], "amount": pa.array([amount], pa.int32())})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as writer:
        writer.write_table(row)
    row_bytes = out.getvalue().to_pybytes()
    headers = {"reason": "too big", "target": target, "batch": "4", "row": row_bytes}
    write(terminal, topic, product.encode(), headers)


@pytest.fixture
def dead(terminal: Terminal, topic: str) -> str:
    """The topic of dead letters of the job whose name is that of the topic."""
    terminal.do("topic", "create", f"{topic}.dead", "--partitions", "1")
    return f"{topic}.dead"


def unread(terminal: Terminal, dead: str, value: bytes) -> None:
    """A letter that `topic` could not be read of."""
    headers = {"reason": "no number", "topic": dead.removesuffix(".dead"), "partition": "0", "offset": "17"}
    write(terminal, dead, value, dict(headers))


def test_rows_of_an_outbox_are_shown_and_not_sent_again(terminal: Terminal, topic: str, dead: str) -> None:
    headers: dict[str, bytes | str] = {"reason": "no topic", "table": "public.outbox", "lsn": "0/1A"}
    write(terminal, dead, b"one", headers)
    assert terminal.do("dead", "show", topic).lines[0].endswith("  public.outbox at 0/1A")
    refusal = terminal.run("dead", "redrive", topic, "--yes")
    assert "holds rows of the outbox public.outbox: insert them there again, corrected" in refusal.err
    (listed,) = [row for row in terminal.do("dead", "list", "--json").json if row["topic"] == dead]
    assert listed["waiting"] == 1


def test_letters_are_listed_shown_and_sent_back_to_their_topic_once(
    terminal: Terminal, topic: str, dead: str
) -> None:
    for value in (b"one", b"two"):
        unread(terminal, dead, value)
    (listed,) = [row for row in terminal.do("dead", "list", "--json").json if row["topic"] == dead]
    assert listed == {"topic": dead, "letters": 2, "waiting": 2, "newest_reason": "no number"}
    shown = terminal.do("dead", "show", topic, "-n", "1").lines
    assert shown[0].startswith("1  20")
    assert shown[0].endswith(f"  {topic}/0 at 17")
    assert shown[1:] == ["    no number", "    two"]
    assert terminal.do("dead", "redrive", topic, "--yes").lines == [f"{topic}: 2 sent again"]
    assert terminal.do("consume", topic, "--until", "end", "-f", r"%k=%v\n").lines == ["k=one", "k=two"]
    again = terminal.do("dead", "redrive", topic, "--yes")
    assert again.err.strip() == f"no letter in {dead} waits to be sent again"
    unread(terminal, dead, b"three")
    assert "waiting" in terminal.do("dead", "list").out
    terminal.do("dead", "redrive", dead, "--yes")
    assert terminal.do("consume", topic, "--until", "end").lines == ["one", "two", "three"]


def test_rows_that_a_target_refused_are_given_to_it_again(
    terminal: Terminal, topic: str, dead: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.db"
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(PIPELINE.format(file=str(file), job=topic))
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE sales (product TEXT PRIMARY KEY, amount INTEGER NOT NULL)")
    refused(terminal, dead, "tea", 3)
    refused(terminal, dead, "cup", None)
    refused(terminal, dead, "pot", 5)
    unasked = terminal.run("dead", "redrive", topic, "--yes")
    assert "name the file that defines the job" in unasked.err
    done = terminal.do("dead", "redrive", topic, str(pipeline), "--yes", "--state", str(tmp_path / "state"))
    assert done.lines == [
        "sqlite sales: 2 sent again",
        "sqlite sales: refused again: NOT NULL constraint failed: sales.amount",
    ]
    assert database.execute("SELECT * FROM sales ORDER BY 1").fetchall() == [("pot", 5), ("tea", 3)]
    (letter,) = terminal.do("dead", "show", topic, "-n", "1", "--json").json
    assert (letter["offset"], letter["origin"]) == (3, "sqlite sales, batch 4")
    assert letter["reason"] == "NOT NULL constraint failed: sales.amount"
    database.close()


def test_the_journal_of_letters_that_are_sent_again_is_next_to_the_checkpoints(
    terminal: Terminal, topic: str, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, state = tmp_path / "checkpoints", tmp_path / "state"
    monkeypatch.setenv("HEADRACE_CHECKPOINTS", str(checkpoints))
    refused(terminal, dead, "tea", 3, target="webhook alerts")
    with Receiver() as receiver:
        pipeline = tmp_path / "pipeline.py"
        output = f'webhook({receiver.url!r}, name="alerts")'
        text = PIPELINE.replace('sqlite("sales", key="product", file={file!r})', output)
        pipeline.write_text(text.replace("App, sqlite", "App, webhook").format(job=topic))
        done = terminal.do("dead", "redrive", topic, str(pipeline), "--yes", "--state", str(state))
        assert done.lines == ["webhook alerts: 1 sent again"]
        assert receiver.rows("product") == ["tea"]
    journals = [path for path in checkpoints.rglob("*") if path.is_file() and "redrive" in str(path)]
    assert journals
    assert not [path for path in state.rglob("*") if path.is_file() and "redrive" in str(path)]


def test_a_job_without_letters_is_explained(terminal: Terminal, new_name: Callable[[], str]) -> None:
    job = new_name()
    assert f"topic '{job}.dead' does not exist" in terminal.run("dead", "show", job).err


def test_a_letter_for_an_output_that_the_job_no_longer_has_is_left_where_it_is(
    terminal: Terminal, topic: str, dead: str, tmp_path: Path
) -> None:
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(PIPELINE.format(file=str(tmp_path / "shop.db"), job=topic).replace("sales", "sold"))
    refused(terminal, dead, "tea", 3)
    failed = terminal.run("dead", "redrive", topic, str(pipeline), "--yes")
    assert failed.code != 0
    assert "declare the output again" in failed.err
    listed = {row["topic"]: row["waiting"] for row in terminal.do("dead", "list", "--json").json}
    assert listed[dead] == 1
