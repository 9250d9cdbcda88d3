"""Rights on the command line, against a broker that authenticates some of its clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.security.brokers import sasl_config, secure_broker
from tests.cli.terminal import Terminal


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose local clients may do everything: so no password is needed here."""
    security = {"super_users": frozenset({"User:ANONYMOUS"})}
    data = tmp_path_factory.mktemp("acl") / "data"
    with secure_broker(data, "PLAINTEXT", "SASL_PLAINTEXT", settings=security) as kafka:
        yield kafka.bootstrap


def test_entries_are_added_listed_and_removed(terminal: Terminal) -> None:
    added = terminal.do("acl", "add", "alice", "read", "write", "--topic", "orders", "--group", "shop")
    assert added.lines == [
        "added User:alice: allow read on topic orders",
        "added User:alice: allow write on topic orders",
        "added User:alice: allow read on group shop",
        "added User:alice: allow write on group shop",
    ]
    heading, *rows = terminal.do("acl", "list", "--user", "alice").lines
    assert heading.split() == ["user", "permission", "operation", "resource", "name", "host"]
    assert ["User:alice", "allow", "read", "topic", "orders", "*"] in [row.split() for row in rows]
    removed = terminal.do("acl", "remove", "alice", "write", "--topic", "orders", "--yes")
    assert removed.lines == ["removed User:alice: allow write on topic orders"]
    left = terminal.do("acl", "list", "--user", "alice", "--json").json
    assert [(entry["resource"], entry["operation"]) for entry in left] == [
        ("group", "read"),
        ("topic", "read"),
        ("group", "write"),
    ]
    assert len(terminal.do("acl", "remove", "alice", "--yes").lines) == 3
    assert "no such entries" in terminal.do("acl", "list", "--user", "alice").err
    assert "nothing changed" in terminal.do("acl", "remove", "alice", "--yes").err


def test_a_prefix_a_wildcard_a_denial_and_the_cluster(terminal: Terminal) -> None:
    terminal.do("acl", "add", "bob", "read", "--topic", "team-", "--prefix")
    terminal.do("acl", "add", "*", "write", "--topic", "team-a", "--deny", "--host", "10.0.0.1")
    terminal.do("acl", "add", "User:bob", "create", "--cluster")
    terminal.do("acl", "add", "bob", "all", "--transactional-id", "*")
    found = terminal.do("acl", "list", "--topic", "team-a").lines[1:]
    assert [line.split() for line in found] == [
        ["User:*", "deny", "write", "topic", "team-a", "10.0.0.1"],
        ["User:bob", "allow", "read", "topic", "team-…", "*"],
    ]
    assert len(terminal.do("acl", "list", "--cluster", "--json").json) == 1
    assert "no such entries" in terminal.do("acl", "remove", "bob", "--topic", "team-", "--yes").err
    terminal.do("acl", "remove", "bob", "--topic", "team-", "--prefix", "--yes")
    assert len(terminal.do("acl", "remove", "bob", "--yes").lines) == 2


def test_an_entry_without_a_resource_is_refused(terminal: Terminal) -> None:
    outcome = terminal.run("acl", "add", "alice", "read")
    assert outcome.code == 2
    assert "no resource is named" in outcome.err
    assert terminal.run("acl", "add", "alice", "fly", "--topic", "x").code == 2
    assert terminal.run("acl", "add", "alice", "read", "--topic", "*", "--prefix").code == 2


def test_a_user_writes_what_it_was_allowed_to(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("tea")
    security = {"super_users": frozenset({"User:ANONYMOUS"})}
    with secure_broker(tmp_path / "data", "SASL_PLAINTEXT", "PLAINTEXT", settings=security) as kafka:
        terminal = Terminal(kafka.bootstraps[1])
        terminal.do("topic", "create", "orders")
        terminal.do("user", "create", "alice", "--password-file", str(tmp_path / "password"))
        producer = Producer(sasl_config(kafka, "alice", "tea", message_timeout_ms=3000))
        assert deliver(producer) == "TOPIC_AUTHORIZATION_FAILED"
        terminal.do("acl", "add", "alice", "write", "--topic", "orders")
        assert deliver(Producer(sasl_config(kafka, "alice", "tea"))) is None


def deliver(producer: Producer) -> str | None:
    """The error of one record; None when it was written."""
    errors: list[str | None] = []
    producer.produce("orders", b"tea", on_delivery=lambda error, _: errors.append(error and error.name()))
    producer.flush(30)
    return errors[0]
