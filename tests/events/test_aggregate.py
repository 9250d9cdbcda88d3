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
from headrace.events.aggregate import OPTIONS, aggregate_schema
from headrace.events.cache import read_state, write_state
from headrace.events.commands import Command, decide
from headrace.events.errors import StateNotSerializable
from tests.events.cart import Added, Cart


def command(name: str, **arguments: Any) -> Command:
    return Command(aggregate_id="a", name=name, arguments=arguments, command_id="c")


def test_commands_and_events_are_found_by_their_shape() -> None:
    schema = aggregate_schema(Cart)
    assert set(schema.commands) == {"create", "add", "add_all", "remove", "check_out"}
    assert set(schema.events) == {"CartCreated", "Added", "Removed", "CheckedOut"}


def test_a_decision_changes_nothing() -> None:
    schema = aggregate_schema(Cart)
    cart = schema.new("a")
    decision = decide(schema, cart, command("add", product="tea", quantity=2))
    assert (decision.reply.kind, decision.reply.version) == ("done", 1)
    assert decision.events[0].event == Added(product="tea", quantity=2)
    assert (cart.version, cart.items) == (0, {})  # type: ignore[attr-defined]


def test_events_of_a_rejected_command_are_discarded() -> None:
    schema = aggregate_schema(Cart)
    cart = schema.new("a")
    cart.items = {"tea": 1}  # type: ignore[attr-defined]
    decision = decide(schema, cart, command("remove", product="tea", quantity=2))
    assert (decision.reply.kind, decision.events) == ("rejected", ())


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("ad", {}, "has no command 'ad'.*add, add_all"),
        ("add", {"product": "tea"}, "missing a required argument: 'quantity'"),
        ("add", {"product": "tea", "quantity": "2"}, "'2' is of type str, not int"),
        ("add", {"product": "tea", "quantity": 2, "x": 1}, "unexpected keyword argument 'x'"),
    ],
)
def test_a_command_with_wrong_arguments_is_refused_before_it_is_sent(
    name: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Misuse, match=problem):
        aggregate_schema(Cart).command(name).write(arguments)


def test_an_event_without_an_applier_is_an_error() -> None:
    class Lost(Event):
        pass

    class Forgetful(Aggregate):
        def lose(self):
            yield Lost()

    schema = aggregate_schema(Forgetful)
    decision = decide(schema, schema.new("a"), command("lose"))
    assert decision.reply.kind == "failed"
    assert "def on_lost(self, e: Lost)" in decision.reply.reason
    with pytest.raises(UnknownEvent, match="on_lost"):
        schema.event("Lost")


def test_an_applier_must_annotate_its_event_and_be_named_after_it() -> None:
    class Nameless(Aggregate):
        def on_added(self, e) -> None:
            pass

    class Misnamed(Aggregate):
        def on_aded(self, e: Added) -> None:
            pass

    with pytest.raises(Misuse, match="must name its event"):
        aggregate_schema(Nameless)
    with pytest.raises(Misuse, match="rename it to on_added"):
        aggregate_schema(Misnamed)


def test_reserved_names_are_refused() -> None:
    class Greedy(Aggregate):
        def work(self, actor: str):
            yield Added(product=actor, quantity=1)

    class Counting(Aggregate):
        def __init__(self) -> None:
            self.version = 3

    with pytest.raises(Misuse, match="'actor', which is a parameter of `execute`"):
        aggregate_schema(Greedy)
    with pytest.raises(Misuse, match="version"):
        aggregate_schema(Counting).new("a")


def test_snapshots_belong_to_the_code_that_created_the_state() -> None:
    def cart(factor: int, **options: int) -> type[Aggregate]:
        namespace: dict[str, Any] = {"Added": Added}
        exec(f"def on_added(self, e: Added): self.n = e.quantity * {factor}", namespace)
        kind = type("Some", (Aggregate,), {"on_added": namespace["on_added"]}, **options)
        assert issubclass(kind, Aggregate)
        return kind

    def mark(kind: type[Aggregate]) -> str:
        return aggregate_schema(kind).snapshots

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
def test_state_survives_a_snapshot_unchanged(value: Any) -> None:
    schema = aggregate_schema(Thing)
    thing = schema.new("a")
    thing.value, thing.lines = value, [Decimal("1.10")]  # type: ignore[attr-defined]
    copy = read_state(schema, "a", 3, write_state(schema, thing))
    assert copy.version == 3
    assert (copy.value, copy.lines) == (value, [Decimal("1.10")])  # type: ignore[attr-defined]
    assert type(copy.value) is type(value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [Counter("a"), object(), [datetime], {"a": {1: Cart()}}])
def test_state_that_a_snapshot_would_change_is_refused(value: Any) -> None:
    schema = aggregate_schema(Thing)
    thing = schema.new("a")
    thing.value = value  # type: ignore[attr-defined]
    with pytest.raises(StateNotSerializable, match=r"Thing\.value"):
        write_state(schema, thing)


def test_times_in_the_state_survive_a_snapshot() -> None:
    schema = aggregate_schema(Thing)
    thing = schema.new("a")
    thing.value = datetime(2024, 5, 1, tzinfo=UTC)  # type: ignore[attr-defined]
    assert read_state(schema, "a", 1, write_state(schema, thing)).value == thing.value  # type: ignore[attr-defined]


def test_no_command_can_use_the_parameters_of_execute() -> None:
    of_both = [inspect.signature(each).parameters for each in (EventStore.execute, EventStore.execute_async)]
    assert of_both[0] == of_both[1]
    named = {name for name, each in of_both[0].items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named == OPTIONS
