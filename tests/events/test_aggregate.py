"""What a class of aggregates must be like."""

import inspect
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Misuse
from headrace.events import Aggregate, Event, EventStore, UnknownEvent
from headrace.events.aggregate import OPTIONS, aggregate_form
from headrace.events.command import Command
from headrace.events.decision import decide
from headrace.events.errors import Unkeepable
from headrace.events.state import read_state, write_state
from tests.events.cart import Added, Cart


def command(name: str, **arguments: Any) -> Command:
    return Command(aggregate_id="a", name=name, arguments=arguments, command_id="c")


def test_commands_and_events_are_found_by_their_shape() -> None:
    form = aggregate_form(Cart)
    assert set(form.commands) == {"create", "add", "add_all", "remove", "check_out"}
    assert set(form.events) == {"CartCreated", "Added", "Removed", "CheckedOut"}


def test_a_decision_changes_nothing() -> None:
    form = aggregate_form(Cart)
    cart = form.new("a")
    decision = decide(form, cart, command("add", product="tea", quantity=2))
    assert (decision.answer.kind, decision.answer.version) == ("done", 1)
    assert decision.events[0].event == Added(product="tea", quantity=2)
    assert (cart.version, cart.items) == (0, {})  # type: ignore[attr-defined]


def test_what_a_rejected_command_yielded_does_not_count() -> None:
    form = aggregate_form(Cart)
    cart = form.new("a")
    cart.items = {"tea": 1}  # type: ignore[attr-defined]
    decision = decide(form, cart, command("remove", product="tea", quantity=2))
    assert (decision.answer.kind, decision.events) == ("rejected", ())


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("ad", {}, "has no command 'ad'.*add, add_all"),
        ("add", {"product": "tea"}, "missing a required argument: 'quantity'"),
        ("add", {"product": "tea", "quantity": "2"}, "'2' is of type str, not int"),
        ("add", {"product": "tea", "quantity": 2, "x": 1}, "unexpected keyword argument 'x'"),
    ],
)
def test_a_command_that_does_not_fit_is_refused_before_it_is_sent(
    name: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Misuse, match=problem):
        aggregate_form(Cart).command(name).write(arguments)


def test_an_event_without_an_applier_is_a_fault_of_the_program() -> None:
    class Lost(Event):
        pass

    class Forgetful(Aggregate):
        def lose(self):
            yield Lost()

    form = aggregate_form(Forgetful)
    decision = decide(form, form.new("a"), command("lose"))
    assert decision.answer.kind == "failed"
    assert "def on_lost(self, e: Lost)" in decision.answer.reason
    with pytest.raises(UnknownEvent, match="on_lost"):
        form.event("Lost")


def test_an_applier_must_say_its_event_and_be_named_after_it() -> None:
    class Nameless(Aggregate):
        def on_added(self, e) -> None:
            pass

    class Misnamed(Aggregate):
        def on_aded(self, e: Added) -> None:
            pass

    with pytest.raises(Misuse, match="which event"):
        aggregate_form(Nameless)
    with pytest.raises(Misuse, match="name it on_added"):
        aggregate_form(Misnamed)


def test_names_that_the_store_needs_are_refused() -> None:
    class Greedy(Aggregate):
        def work(self, actor: str):
            yield Added(product=actor, quantity=1)

    class Counting(Aggregate):
        def __init__(self) -> None:
            self.version = 3

    with pytest.raises(Misuse, match="'actor', which `execute` needs"):
        aggregate_form(Greedy)
    with pytest.raises(Misuse, match="version"):
        aggregate_form(Counting).new("a")


def test_snapshots_are_of_the_code_that_made_the_state() -> None:
    def cart(factor: int, **options: int) -> type[Aggregate]:
        namespace: dict[str, Any] = {"Added": Added}
        exec(f"def on_added(self, e: Added): self.n = e.quantity * {factor}", namespace)
        kind = type("Some", (Aggregate,), {"on_added": namespace["on_added"]}, **options)
        assert issubclass(kind, Aggregate)
        return kind

    def mark(kind: type[Aggregate]) -> str:
        return aggregate_form(kind).snapshots

    assert mark(cart(2)) == mark(cart(2))
    assert mark(cart(2)) != mark(cart(3))
    assert mark(cart(2)) != mark(cart(2, snapshots=2))


class Thing(Aggregate):
    lines: list[Decimal]

    def __init__(self) -> None:
        self.lines = []
        self.value: Any = None


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.uuids(),
    st.dates(), st.timedeltas(), st.decimals(allow_nan=False), st.datetimes(timezones=st.just(UTC)),
)  # fmt: skip
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(leaves, inner), st.sets(leaves)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(value=states)
def test_state_comes_back_from_a_snapshot_as_it_was(value: Any) -> None:
    form = aggregate_form(Thing)
    thing = form.new("a")
    thing.value, thing.lines = value, [Decimal("1.10")]  # type: ignore[attr-defined]
    copy = read_state(form, "a", 3, write_state(form, thing))
    assert copy.version == 3
    assert (copy.value, copy.lines) == (value, [Decimal("1.10")])  # type: ignore[attr-defined]
    assert type(copy.value) is type(value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [Counter("a"), object(), [datetime], {"a": {1: Cart()}}])
def test_state_that_would_come_back_as_something_else_is_refused(value: Any) -> None:
    form = aggregate_form(Thing)
    thing = form.new("a")
    thing.value = value  # type: ignore[attr-defined]
    with pytest.raises(Unkeepable, match=r"Thing\.value"):
        write_state(form, thing)


def test_times_of_state_keep_their_moment() -> None:
    form = aggregate_form(Thing)
    thing = form.new("a")
    thing.value = datetime(2024, 5, 1, tzinfo=UTC)  # type: ignore[attr-defined]
    assert read_state(form, "a", 1, write_state(form, thing)).value == thing.value  # type: ignore[attr-defined]


def test_no_command_can_take_what_execute_takes_itself() -> None:
    of_both = [inspect.signature(each).parameters for each in (EventStore.execute, EventStore.execute_async)]
    assert of_both[0] == of_both[1]
    named = {name for name, each in of_both[0].items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named == OPTIONS
