"""Aggregates: objects with an id and a history that decide on commands, and change only by events.

    class Cart(Aggregate):
        def __init__(self):
            self.items = {}

        def add(self, product: str, quantity: int):     # a command: yields events, or raises Rejected
            if quantity < 1:
                raise Rejected("at least one")
            yield Added(product=product, quantity=quantity)

        def on_added(self, e: Added):                   # an applier: changes the state
            self.items[e.product] = self.items.get(e.product, 0) + e.quantity

A command sees the state before its own events; they are applied when it ends. If it raises `Rejected`, none
of its events count. The name of an applier is that of its event, and its annotation is the class. Commands
and appliers must depend only on the state and their arguments.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_type_hints

from headrace.errors import HeadraceError, Misuse
from headrace.events.codecs import Codec, codec_of, read_with
from headrace.events.errors import UnknownEvent
from headrace.events.event import Event, EventSchema, event_schema, snake_case

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

OPTIONS: Final = frozenset(
    {"expected_version", "command_id", "actor", "correlation_id", "causation_id", "wait_for", "timeout"}
)
"""The keyword parameters of `execute`, which commands cannot use."""
RESERVED: Final = frozenset({"id", "version"})


class Aggregate:
    """The base class of aggregates. The store sets `id` and `version`, the number of events."""

    id: str = ""
    version: int = 0
    _snapshot_version: ClassVar[int] = 1
    _schema: ClassVar[AggregateSchema]

    def __init_subclass__(cls, *, snapshots: int = 1, **more: Any) -> None:
        """Increase `snapshots` to discard older snapshots after a change that no applier shows."""
        super().__init_subclass__(**more)
        cls._snapshot_version = snapshots


class CommandSchema:
    """The parameters of one command."""

    def __init__(self, owner: str, name: str, function: FunctionType) -> None:
        self.name = f"{owner}.{name}"
        signature = inspect.signature(function)
        self._signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        self._codecs = _parameter_codecs(self.name, self._signature, function)
        self._valid_names: set[tuple[str, ...]] = set()
        clash = OPTIONS & self._codecs.keys()
        if clash:
            raise Misuse(
                f"{self.name} has a parameter {min(clash)!r}, which is a parameter of `execute`: rename it."
            )

    def __str__(self) -> str:
        return f"{self.name}{self._signature}"

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON values, or `Misuse` if they do not match the parameters."""
        try:
            self._check(tuple(arguments))
            return {name: self._codecs[name].write(value) for name, value in arguments.items()}
        except (TypeError, ValueError) as error:
            raise Misuse(f"{self}: {error}") from None

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments from JSON values, or `Misuse` if they do not match the parameters."""
        try:
            self._check(tuple(arguments))
            return {name: read_with(self._codecs[name], value) for name, value in arguments.items()}
        except (TypeError, ValueError) as error:
            raise Misuse(f"{self}: {error}") from None

    def _check(self, names: tuple[str, ...]) -> None:
        """Raise `TypeError` if the command has other parameters; each set of names is checked once."""
        if names not in self._valid_names:
            self._signature.bind(**dict.fromkeys(names))
            self._valid_names.add(names)


class AggregateSchema:
    """The commands, events and appliers of one class of aggregates."""

    def __init__(self, kind: type[Aggregate]) -> None:
        self.kind = kind
        self.name = kind.__name__
        functions = dict(inspect.getmembers(kind, inspect.isfunction))
        self.commands = {
            name: CommandSchema(self.name, name, function)
            for name, function in functions.items()
            if inspect.isgeneratorfunction(function) and not name.startswith("_")
        }
        self._appliers: dict[type[Event], Callable[[Any, Any], None]] = {}
        self.events: dict[str, EventSchema] = {}
        for name, function in functions.items():
            if name.startswith("on_"):
                self._add_applier(name, function)
        self.snapshots = f"{kind._snapshot_version}-{_fingerprint(functions)}"
        self.state = _state_codecs(kind)

    def new(self, key: str) -> Aggregate:
        """An aggregate without events."""
        aggregate = self.kind()
        if RESERVED & vars(aggregate).keys():
            raise Misuse(
                f"{self.name} sets {sorted(RESERVED & vars(aggregate).keys())}, which the store sets: rename "
                "the attribute."
            )
        aggregate.id = key
        return aggregate

    def command(self, name: str) -> CommandSchema:
        """The command with that name, or `Misuse`."""
        if name not in self.commands:
            known = ", ".join(sorted(self.commands)) or "none"
            raise Misuse(
                f"{self.name} has no command {name!r} (its commands: {known}). A command is a method "
                "that yields events."
            )
        return self.commands[name]

    def event(self, name: str) -> EventSchema:
        """The event with that current or former name."""
        if name not in self.events:
            raise UnknownEvent(
                f"an event {name!r} is in the log, and {self.name} has no applier for it: write "
                f"`def on_{snake_case(name)}(self, e: {name})`, or add it to formerly= of the renamed event."
            )
        return self.events[name]

    def schema_of(self, event: object) -> EventSchema:
        """The schema of an event that a command yielded, or `Misuse`."""
        if not isinstance(event, Event):
            raise Misuse(f"a command of {self.name} yielded {event!r}, which is not an event.")
        if type(event) not in self._appliers:
            name = type(event).__name__
            raise Misuse(
                f"{self.name} yielded {name}, for which it has no applier: write "
                f"`def on_{snake_case(name)}(self, e: {name})`; its body may be `pass`."
            )
        return event_schema(type(event))

    def apply(self, aggregate: Aggregate, event: Event) -> None:
        """Apply an event, and increase the version."""
        self._appliers[type(event)](aggregate, event)
        aggregate.version += 1

    def _add_applier(self, name: str, function: FunctionType) -> None:
        kind = _event_of(self.name, name, function)
        schema = event_schema(kind)
        if name != f"on_{snake_case(schema.name)}":
            raise Misuse(
                f"{self.name}.{name} takes {schema.name}: rename it to on_{snake_case(schema.name)}."
            )
        self._appliers[kind] = function
        for known in schema.names:
            if self.events.setdefault(known, schema) is not schema:
                raise Misuse(
                    f"{self.name} has two events with the current or former name {known!r}: rename one."
                )


def aggregate_schema(kind: type[Aggregate]) -> AggregateSchema:
    """The schema of a class of aggregates, created once, or `Misuse` if the class is not valid."""
    schema = kind.__dict__.get("_schema")  # not one that is inherited
    if schema is None:
        schema = AggregateSchema(kind)
        kind._schema = schema
    return schema


def _event_of(owner: str, name: str, function: FunctionType) -> type[Event]:
    parameters = list(inspect.signature(function).parameters)
    try:
        kind = get_type_hints(function).get(parameters[1] if len(parameters) == 2 else "")
    except NameError as error:
        raise Misuse(
            f"the annotation of {owner}.{name} is unknown: {error}. Define the event before the aggregate."
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        raise Misuse(f"{owner}.{name} must name its event: `def {name}(self, e: TheEvent)`.")
    return kind


def _parameter_codecs(name: str, signature: inspect.Signature, function: FunctionType) -> dict[str, Codec]:
    try:
        hints = get_type_hints(function)
        return {each: codec_of(hints.get(each, Any)) for each in signature.parameters}
    except (TypeError, NameError) as error:
        raise Misuse(f"a parameter of {name} cannot be serialized: {error}.") from error


def _state_codecs(kind: type[Aggregate]) -> dict[str, Codec]:
    """The schemas of the attributes that the class annotates."""
    hints = get_type_hints(kind)
    try:
        return {
            name: codec_of(hint) for name, hint in hints.items() if name not in RESERVED and name[0] != "_"
        }
    except TypeError as error:
        raise Misuse(f"an attribute of {kind.__name__} cannot be serialized: {error}.") from error


def _fingerprint(functions: Mapping[str, FunctionType]) -> str:
    """Changes with the code that creates the state."""
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
        else:  # the order of a set differs between processes
            update(
                repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()
            )


def load_aggregate(path: Path, name: str) -> AggregateSchema:
    """The aggregate class of that name in a Python file, which can import modules from its own folder."""
    spec = importlib.util.spec_from_file_location(f"events_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Misuse(f"{path} is not a Python file: pass the file that defines {name}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        raise Misuse(f"{path} failed: {type(error).__name__}: {error}") from error
    kind = vars(module).get(name)
    if not (isinstance(kind, type) and issubclass(kind, Aggregate)):
        raise Misuse(f"{path} defines no aggregate class {name}.")
    return aggregate_schema(kind)
