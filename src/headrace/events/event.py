"""Events: what has happened, as immutable, typed and versioned values.

    class Added(Event):
        product: str
        quantity: int

An event has the fields that are annotated, given by name, and checked when it is made. What is in the log
stays as it is for ever. When the fields change, the version goes up, and a function for each older version
says how its fields become those of the next one:

    class Added(Event, version=2, formerly=("ItemAdded",)):
        product: str
        quantity: int
        price: Decimal

        def upcast_1(fields):
            return {**fields, "price": "0"}
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, ClassVar, Final, dataclass_transform, get_type_hints

from headrace.events.errors import BadEvent, Misuse, UnknownEvent, UnreadableEvent
from headrace.events.values import Form, form_of, read_with

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """The base of events: `class Added(Event): product: str`."""

    _event_version: ClassVar[int] = 1
    _former_names: ClassVar[tuple[str, ...]] = ()
    _form: ClassVar[EventForm]

    def __init_subclass__(
        cls, *, version: int = 1, formerly: str | tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls._event_version = version
        cls._former_names = (formerly,) if isinstance(formerly, str) else tuple(formerly)
        missing = [
            number for number in range(1, version) if not callable(getattr(cls, f"upcast_{number}", None))
        ]
        if missing:
            raise Misuse(
                f"{cls.__name__} is of version {version}, and nothing says how version {missing[0]} becomes "
                f"the next one: write `def upcast_{missing[0]}(fields)`, which returns the fields of version "
                f"{missing[0] + 1}."
            )
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        form = event_form(type(self))
        for name, field in form.fields.items():
            try:
                field.write(self.__dict__[name])
            except (TypeError, ValueError) as fault:
                raise BadEvent(f"{form.name}.{name}: {fault}") from None


class EventForm:
    """One class of events, as the log needs it."""

    def __init__(self, kind: type[Event]) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.version = kind._event_version
        self.names = (self.name, *kind._former_names)
        self.fields = _fields(kind)
        self._defaults = {field.name: field for field in dataclasses.fields(kind) if _has_default(field)}  # type: ignore[arg-type]  # a dataclass since __init_subclass__

    def write(self, event: Event) -> bytes:
        """The fields of an event as JSON."""
        values = event.__dict__
        return _compact({name: form.write(values[name]) for name, form in self.fields.items()}).encode()

    def read(self, value: bytes, version: int) -> Event:
        """The event that was written with the class of that version, as one of today."""
        try:
            written: dict[str, Any] = json.loads(value)
        except (ValueError, RecursionError) as fault:
            raise UnreadableEvent(f"its fields are no JSON: {fault}") from fault
        if not isinstance(written, dict):
            raise UnreadableEvent(f"its fields are no JSON object: {value[:80]!r}")
        fields = self.upcast(written, version)
        if fields.keys() != self.fields.keys():
            fields = self._completed(fields)
        event = self.kind.__new__(self.kind)
        # Checked when it was made: past `__init__`, which would check it again.
        event.__dict__.update({name: read_with(self.fields[name], each) for name, each in fields.items()})
        return event

    def upcast(self, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """The fields of an older version as those of the current one."""
        if version > self.version:
            raise UnknownEvent(f"an event {self.name} of version {version}{newer_event(self.version)}")
        for number in range(version, self.version):
            # From the class itself, so that it is a plain function there, with or without @staticmethod.
            fields = getattr(self.kind, f"upcast_{number}")(fields)
        return fields

    def _completed(self, fields: dict[str, Any]) -> dict[str, Any]:
        strange = fields.keys() - self.fields.keys()
        missing = self.fields.keys() - fields.keys() - self._defaults.keys()
        if strange or missing:
            problem = f"has {sorted(strange)}" if strange else f"lacks {sorted(missing)}"
            raise BadEvent(
                f"an event {self.name} in the log {problem}, other than its class: when fields change, give "
                f"the class version={self.version + 1} and write upcast_{self.version}."
            )
        return {name: fields[name] if name in fields else self._default(name) for name in self.fields}

    def _default(self, name: str) -> Any:
        field = self._defaults[name]
        made = field.default
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
        return self.fields[name].write(made)


def newer_event(known: int) -> str:
    """What is wrong with an event whose version is above the one that is known, and what to do."""
    return (
        f" is in the log, and this program knows it up to version {known}: a newer program wrote it. "
        "Update this one."
    )


def event_form(kind: type[Event]) -> EventForm:
    """The form of a class of events, made once."""
    form = kind.__dict__.get("_form")  # not one that is inherited
    if form is None:
        form = EventForm(kind)
        kind._form = form
    return form


def snake_case(name: str) -> str:
    """The name of an applier, as far as it comes from the event.

    >>> snake_case("CartCreated"), snake_case("SKUChanged")
    ('cart_created', 'sku_changed')
    """
    return _WORD.sub("_", name).lower()


def _fields(kind: type[Event]) -> dict[str, Form]:
    try:
        hints = get_type_hints(kind)
        return {field.name: form_of(hints[field.name]) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # a dataclass since __init_subclass__
    except (TypeError, NameError) as fault:
        raise Misuse(
            f"the fields of the event {kind.__name__} cannot be kept: {fault}. Use the types that "
            "headrace.events.values lists, or dataclasses of them."
        ) from fault


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
