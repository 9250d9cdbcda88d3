"""`headrace events`: what happened, and what was, on the command line."""

import json
import uuid
from pathlib import Path

import pytest

from headrace.events import EventStore
from tests.cli.terminal import Terminal
from tests.events import cart
from tests.events.cart import Cart

PROGRAM = ("--program", str(Path(cart.__file__)))


@pytest.fixture
def of(terminal: Terminal) -> str:
    """A cart with the events of the worked example."""
    name = f"s{uuid.uuid4().hex[:8]}"
    with EventStore(name, broker=terminal.bootstrap, partitions=1) as store:
        store.execute(Cart, "cart-17", "create", actor="ann")
        store.execute(Cart, "cart-17", "add", product="tea", quantity=2)
        store.execute(Cart, "cart-18", "create")
        store.execute(Cart, "cart-17", "add", product="cup", quantity=1)
        store.execute(Cart, "cart-17", "remove", product="tea", quantity=1)
    return f"{name}.Cart"


def test_the_log_lists_events(terminal: Terminal, of: str) -> None:
    lines = terminal.do("events", "log", of, "cart-17").lines
    assert lines[0].split() == ["id", "version", "time", "event", "fields", "actor"]
    assert [line.split()[1] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert lines[1].split()[3:] == ["CartCreated", '{"owner":"somebody"}', "ann"]
    found = json.loads("".join(terminal.do("events", "log", of, "--json").lines))
    assert [(each["id"], each["version"]) for each in found] == [
        ("cart-17", 1), ("cart-17", 2), ("cart-18", 1), ("cart-17", 3), ("cart-17", 4),
    ]  # fmt: skip
    assert found[1]["fields"] == {"product": "tea", "quantity": 2}


def test_an_aggregate_is_shown_as_it_is_and_as_it_was(terminal: Terminal, of: str) -> None:
    assert terminal.do("events", "show", of, "cart-17", *PROGRAM).lines == [
        "Cart cart-17, version 4",
        '  items: {"tea": 1, "cup": 1}',
        "  closed: false",
    ]
    then = terminal.do("events", "show", of, "cart-17", *PROGRAM, "--version", "3", "--json").lines
    assert json.loads("".join(then))["state"] == {"items": {"tea": 2, "cup": 1}, "closed": False}
    before = terminal.do("events", "as-of", of, "cart-17", "2020-01-01T00:00Z", *PROGRAM).lines
    assert before[0] == "Cart cart-17, version 0"
    now = terminal.do("events", "as-of", of, "cart-17", "-0s", *PROGRAM, "--json").lines
    assert json.loads("".join(now))["version"] == 4


def test_a_diff_says_what_each_event_changed(terminal: Terminal, of: str) -> None:
    lines = terminal.do("events", "diff", of, "cart-17", *PROGRAM).lines
    changes = [line.split(maxsplit=3)[3] for line in lines[1:]]
    assert changes == ["-", "items.tea: ∅ → 2", "items.cup: ∅ → 1", "items.tea: 2 → 1"]
    found = json.loads("".join(terminal.do("events", "diff", of, "cart-17", *PROGRAM, "--json").lines))
    assert found[3]["changes"] == [{"path": "items.tea", "before": 2, "after": 1}]
    assert found[1]["changes"] == [{"path": "items.tea", "after": 2}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("log", "Cart"), "such as shop.Cart"),
        (("log", "nothing.Cart"), "the store 'nothing' has no events of Cart"),
        (("show", "shop.Cat", "c", *PROGRAM), "defines no aggregate class Cat"),
        (("show", "shop.Cart", "c", "--program", "missing.py"), "missing.py is not a Python file"),
        (("as-of", "shop.Cart", "c", "noon", *PROGRAM), "'noon' is not a position"),
        (("as-of", "shop.Cart", "c", "7", *PROGRAM), "'7' is not a time"),
    ],
)
def test_mistakes_are_explained(terminal: Terminal, arguments: tuple[str, ...], message: str) -> None:
    outcome = terminal.run("events", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
