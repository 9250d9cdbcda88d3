"""Aggregates: things that have an id and a history, decide on commands, and change by events alone.

    class Cart(Aggregate):
        def __init__(self):
            self.items = {}

        def add(self, product: str, quantity: int):     # a command: it yields events, or raises Rejected
            if quantity < 1:
                raise Rejected("at least one")
            yield Added(product=product, quantity=quantity)

        def on_added(self, e: Added):                   # what an event does
            self.items[e.product] = self.items.get(e.product, 0) + e.quantity

A command sees the state as it was before it, until it ends; only then its events are applied. What it yielded
before it raised `Rejected` does not count. Appliers are found by the names of their events, and the events by
the annotations of the appliers. Both must depend on nothing else than the state and what they are given.
"""

from __future__ import annotations

import hashlib
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_type_hints

from headrace.events.errors import Misuse, UnknownEvent
from headrace.events.event import Event, EventForm, event_form, snake_case
from headrace.events.values import Form, form_of, read_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPTIONS: Final = frozenset(
    {"expected_version", "command_id", "actor", "correlation", "causation", "wait_for", "timeout_s"}
)
"""What `execute` itself takes by name."""
OWN: Final = frozenset({"id", "version"})


class Aggregate:
    """The base of aggregates. `id` and `version` are set by the store; the version counts events."""

    id: str = ""
    version: int = 0
    _snapshot_version: ClassVar[int] = 1
    _form: ClassVar[AggregateForm]

    def __init_subclass__(cls, *, snapshots: int = 1, **more: Any) -> None:
        """Snapshots of another number are not used: for changes of state that no applier shows."""
        super().__init_subclass__(**more)
        cls._snapshot_version = snapshots


class CommandForm:
    """One command: the names and the types of what it is given."""

    def __init__(self, owner: str, name: str, function: FunctionType) -> None:
        self.name = f"{owner}.{name}"
        signature = inspect.signature(function)
        self._signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        self._forms = _parameter_forms(self.name, self._signature, function)
        self._fitting: set[tuple[str, ...]] = set()
        clash = OPTIONS & self._forms.keys()
        if clash:
            raise Misuse(
                f"{self.name} has a parameter {min(clash)!r}, which `execute` needs itself: rename it."
            )

    def __str__(self) -> str:
        return f"{self.name}{self._signature}"

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON has them, or `Misuse` when they are not those of the command."""
        try:
            self._check(tuple(arguments))
            return {name: self._forms[name].write(value) for name, value in arguments.items()}
        except (TypeError, ValueError) as fault:
            raise Misuse(f"{self}: {fault}") from None

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a command that was sent."""
        try:
            self._check(tuple(arguments))
            return {name: read_with(self._forms[name], value) for name, value in arguments.items()}
        except (TypeError, ValueError) as fault:
            raise Misuse(f"{self}: {fault}") from None

    def _check(self, names: tuple[str, ...]) -> None:
        """Pass when the command takes these; a signature is asked once about the same names."""
        if names not in self._fitting:
            self._signature.bind(**dict.fromkeys(names))
            self._fitting.add(names)


class AggregateForm:
    """One class of aggregates: its commands, its events, and what they do."""

    def __init__(self, kind: type[Aggregate]) -> None:
        self.kind = kind
        self.name = kind.__name__
        functions = dict(inspect.getmembers(kind, inspect.isfunction))
        self.commands = {
            name: CommandForm(self.name, name, function)
            for name, function in functions.items()
            if inspect.isgeneratorfunction(function) and not name.startswith("_")
        }
        self._appliers: dict[type[Event], Callable[[Any, Any], None]] = {}
        self.events: dict[str, EventForm] = {}
        for name, function in functions.items():
            if name.startswith("on_"):
                self._learn(name, function)
        self.snapshots = f"{kind._snapshot_version}-{_fingerprint(functions)}"
        self.state = _state_forms(kind)

    def new(self, key: str) -> Aggregate:
        """An aggregate to which nothing has happened yet."""
        aggregate = self.kind()
        if OWN & vars(aggregate).keys():
            raise Misuse(
                f"{self.name} sets {sorted(OWN & vars(aggregate).keys())}, which the store sets: rename it."
            )
        aggregate.id = key
        return aggregate

    def command(self, name: str) -> CommandForm:
        """The command of that name."""
        if name not in self.commands:
            known = ", ".join(sorted(self.commands)) or "none"
            raise Misuse(
                f"{self.name} has no command {name!r} (it has: {known}). A command is a method that yields "
                "events."
            )
        return self.commands[name]

    def event(self, name: str) -> EventForm:
        """The event of that name, or of that former name."""
        if name not in self.events:
            raise UnknownEvent(
                f"an event {name!r} is in the log, and {self.name} has no applier for it: write "
                f"`def on_{snake_case(name)}(self, e: {name})`, or name it in formerly= of the event that "
                "it is now."
            )
        return self.events[name]

    def form_for(self, event: object) -> EventForm:
        """The form of an event that a command yielded, or `Misuse`."""
        if not isinstance(event, Event):
            raise Misuse(f"a command of {self.name} yielded {event!r}, which is no event.")
        if type(event) not in self._appliers:
            name = type(event).__name__
            raise Misuse(
                f"{self.name} yielded {name} and does not say what it does: write "
                f"`def on_{snake_case(name)}(self, e: {name})`; its body may be `pass`."
            )
        return event_form(type(event))

    def apply(self, aggregate: Aggregate, event: Event) -> None:
        """Let an event change the aggregate, which is one version further then."""
        self._appliers[type(event)](aggregate, event)
        aggregate.version += 1

    def _learn(self, name: str, function: FunctionType) -> None:
        kind = _event_of(self.name, name, function)
        form = event_form(kind)
        if name != f"on_{snake_case(form.name)}":
            raise Misuse(f"{self.name}.{name} takes {form.name}: name it on_{snake_case(form.name)}.")
        self._appliers[kind] = function
        for known in form.names:
            if self.events.setdefault(known, form) is not form:
                raise Misuse(f"{self.name} has two events that are or were named {known!r}: rename one.")


def aggregate_form(kind: type[Aggregate]) -> AggregateForm:
    """The form of a class of aggregates, made once, or `Misuse` for one that cannot be kept."""
    form = kind.__dict__.get("_form")  # not one that is inherited
    if form is None:
        form = AggregateForm(kind)
        kind._form = form
    return form


def _event_of(owner: str, name: str, function: FunctionType) -> type[Event]:
    parameters = list(inspect.signature(function).parameters)
    try:
        kind = get_type_hints(function).get(parameters[1] if len(parameters) == 2 else "")
    except NameError as fault:
        raise Misuse(
            f"the annotation of {owner}.{name} is not known: {fault}. Define the event before."
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise Misuse(f"{owner}.{name} is to say which event it takes: `def {name}(self, e: TheEvent)`.")
    return kind


def _parameter_forms(name: str, signature: inspect.Signature, function: FunctionType) -> dict[str, Form]:
    try:
        hints = get_type_hints(function)
        return {each: form_of(hints.get(each, Any)) for each in signature.parameters}
    except (TypeError, NameError) as fault:
        raise Misuse(f"a parameter of {name} cannot be sent: {fault}.") from fault


def _state_forms(kind: type[Aggregate]) -> dict[str, Form]:
    """The forms of the attributes that the class annotates."""
    hints = get_type_hints(kind)
    try:
        return {name: form_of(hint) for name, hint in hints.items() if name not in OWN and name[0] != "_"}
    except TypeError as fault:
        raise Misuse(f"an attribute of {kind.__name__} cannot be kept: {fault}.") from fault


def _fingerprint(functions: Mapping[str, FunctionType]) -> str:
    """Another one when the code that makes the state is another."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(functions):
        if name == "__init__" or name.startswith("on_"):
            digest.update(name.encode())
            _digest(functions[name].__code__, digest.update)
    return digest.hexdigest()


def _digest(code: CodeType, update: Callable[[bytes], None]) -> None:
    update(code.co_code)
    update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _digest(constant, update)
        else:  # the order in a set is another one in each process
            update(
                repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()
            )
