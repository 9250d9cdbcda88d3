from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.cli.terminal import DEADLINE_S, Terminal, wait_until

NewName = Callable[[], str]


@pytest.fixture
def idle_writer(terminal: Terminal, new_name: NewName) -> str:
    """The transactional id of a writer that has no transaction open."""
    name = new_name()
    Producer({"bootstrap.servers": terminal.bootstrap, "transactional.id": name}).init_transactions(
        DEADLINE_S
    )
    return name


@pytest.fixture
def writer(terminal: Terminal, topic: str, new_name: NewName) -> tuple[str, Producer]:
    """A writer with a transaction open, and its transactional id."""
    name = new_name()
    config = {
        "bootstrap.servers": terminal.bootstrap,
        "transactional.id": name,
        "transaction.timeout.ms": 54_000,
    }
    producer = Producer(config)
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"hanging")
    producer.flush(DEADLINE_S)
    return name, producer


def test_an_open_transaction_is_listed(
    terminal: Terminal, writer: tuple[str, Producer], idle_writer: str
) -> None:
    name, _ = writer
    states = {each["transactional_id"]: each["state"] for each in terminal.do("txn", "list", "--json").json}
    assert states[name] == "Ongoing"
    assert states[idle_writer] == "Empty"
    open_ones = {each["transactional_id"] for each in terminal.do("txn", "list", "--open", "--json").json}
    assert name in open_ones
    assert idle_writer not in open_ones
    assert any(line.startswith(name) and "Ongoing" in line for line in terminal.do("txn", "list").lines)


def test_a_transaction_that_has_ended_is_not_listed_as_open(
    terminal: Terminal, writer: tuple[str, Producer]
) -> None:
    name, producer = writer
    producer.commit_transaction(DEADLINE_S)

    def described() -> Any:
        return terminal.do("txn", "describe", name, "--json").json

    wait_until(lambda: described()["state"] == "CompleteCommit", "the transaction to be complete")
    assert described()["started"] is None
    open_ones = {each["transactional_id"] for each in terminal.do("txn", "list", "--open", "--json").json}
    assert name not in open_ones


def test_describe_shows_what_a_transaction_writes_to(
    terminal: Terminal, topic: str, writer: tuple[str, Producer]
) -> None:
    name, _ = writer
    described = terminal.do("txn", "describe", name, "--json").json
    assert described["partitions"] == [f"{topic}/0"]
    assert described["timeout_ms"] == 54_000
    assert described["started"].endswith("Z")
    assert f"partitions:       {topic}/0" in terminal.do("txn", "describe", name).lines


def test_a_transaction_that_is_not_open_has_no_start(terminal: Terminal, idle_writer: str) -> None:
    described = terminal.do("txn", "describe", idle_writer, "--json").json
    assert (described["state"], described["started"], described["partitions"]) == ("Empty", None, [])


def test_abort_lets_readers_go_on_and_shuts_the_writer_out(
    terminal: Terminal, topic: str, writer: tuple[str, Producer]
) -> None:
    name, producer = writer
    terminal.do("produce", topic, stdin="behind it\n")
    assert terminal.do("consume", topic, "--until", "end").out == ""
    assert terminal.do("txn", "abort", name, "--yes").out == f"aborted the transaction of {name}\n"
    wait_until(
        lambda: terminal.do("consume", topic, "--until", "end").out == "behind it\n",
        "readers to pass the aborted record",
    )
    with pytest.raises(KafkaException):
        producer.commit_transaction(DEADLINE_S)
    described = terminal.do("txn", "describe", name, "--json").json
    assert described["started"] is None
    assert described["timeout_ms"] == 54_000


def test_abort_wants_a_confirmation(terminal: Terminal, writer: tuple[str, Producer]) -> None:
    name, producer = writer
    outcome = terminal.run("txn", "abort", name)
    assert outcome.code == 2
    assert "fence its producer" in outcome.err
    producer.commit_transaction(DEADLINE_S)


def test_there_is_nothing_to_abort_without_an_open_transaction(terminal: Terminal, idle_writer: str) -> None:
    outcome = terminal.run("txn", "abort", idle_writer, "--yes")
    assert outcome.code == 1
    assert "nothing to abort" in outcome.err


def test_an_unknown_id_is_not_made_by_asking_for_it(
    terminal: Terminal, writer: tuple[str, Producer], new_name: NewName
) -> None:
    unknown = new_name()
    for command in ("describe", "abort"):
        outcome = terminal.run("txn", command, unknown)
        assert outcome.code == 1
        assert f"no broker knows the transactional id '{unknown}'" in outcome.err
    assert unknown not in terminal.do("txn", "list").out
    near = terminal.run("txn", "describe", writer[0][:-1])
    assert f"Did you mean '{writer[0]}'?" in near.err
