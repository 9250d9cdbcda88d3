"""`headrace events`: shows the events of aggregates, and their state at any version or time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options  # noqa: TC001
from headrace.cli.output import print_json, print_line, print_table
from headrace.cli.reader import PositionKind, read_position
from headrace.cli.session import connect
from headrace.errors import Misuse

if TYPE_CHECKING:
    from headrace.cli.session import BrokerSession
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.event import RecordedEvent
    from headrace.events.history import StateChange
    from headrace.events.topics import StoreTopics

commands = typer.Typer(
    no_args_is_help=True, help="Show the events of aggregates, and their state at any version or time."
)

Of = Annotated[str, typer.Argument(metavar="STORE.AGGREGATE", help="Aggregate class, such as shop.Cart.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the aggregate.")]
Program = Annotated[
    Path, typer.Option("--program", metavar="FILE", help="Python file that defines the aggregate.")
]


@commands.command()
def log(
    *,
    of: Of,
    key: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of the aggregate (default: all).")
    ] = None,
    broker: options.Broker = None,
    as_json: options.Json = False,
) -> None:
    """List the events of an aggregate, or of all, in order.

    Example: headrace events log shop.Cart cart-17
    """
    from headrace.events.history import read_history

    with connect(broker) as session:
        history = list(read_history(session.cluster, _topics(session, of), key))
    if as_json:
        print_json([_document(recorded) for recorded in history])
        return
    rows = [
        (
            recorded.id,
            recorded.version,
            _time(recorded.time),
            recorded.type,
            recorded.data.decode(),
            recorded.actor,
        )
        for recorded in history
    ]
    print_table(["id", "version", "time", "event", "fields", "actor"], rows)


@commands.command()
def show(
    *,
    of: Of,
    key: Id,
    program: Program,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="Show the state at this version (default: the latest)."),
    ] = None,
    broker: options.Broker = None,
    as_json: options.Json = False,
) -> None:
    """Show the state of an aggregate, now or at a version.

    Example: headrace events show shop.Cart cart-17 --program shop.py
    """
    _show(of, key, program, broker, version=version, as_of=None, as_json=as_json)


# A relative time begins with a dash, like an option.
@commands.command("as-of", context_settings={"ignore_unknown_options": True})
def as_of(
    *,
    of: Of,
    key: Id,
    time: Annotated[
        str,
        typer.Argument(metavar="TIME", help="A time such as 2026-01-31T12:00, or a time ago such as -5m."),
    ],
    program: Program,
    broker: options.Broker = None,
    as_json: options.Json = False,
) -> None:
    """Show the state of an aggregate at a time.

    Example: headrace events as-of shop.Cart cart-17 2026-01-31T12:00 --program shop.py
    """
    _show(of, key, program, broker, version=None, as_of=_read_time(time), as_json=as_json)


@commands.command()
def diff(
    *,
    of: Of,
    key: Id,
    program: Program,
    broker: options.Broker = None,
    as_json: options.Json = False,
) -> None:
    """Show what each event of an aggregate changed.

    Example: headrace events diff shop.Cart cart-17 --program shop.py
    """
    from headrace.events.history import history_steps, read_events

    schema = _schema(of, program)
    with connect(broker) as session:
        found = list(history_steps(schema, key, read_events(session.cluster, _topics(session, of), key)))
    if as_json:
        print_json([{**_document(step.recorded), "changes": _changes(step.changes)} for step in found])
        return
    rows = [
        (step.recorded.version, _time(step.recorded.time), step.recorded.type, _sentence(step.changes))
        for step in found
    ]
    print_table(["version", "time", "event", "changes"], rows)


def _show(
    of: str,
    key: str,
    program: Path,
    broker: str | None,
    *,
    version: int | None,
    as_of: datetime | None,
    as_json: bool,
) -> None:
    from headrace.events.cache import plain_state
    from headrace.events.history import rebuild

    schema = _schema(of, program)
    with connect(broker) as session:
        found = rebuild(session.cluster, _topics(session, of), schema, key, version=version, as_of=as_of)
    state = plain_state(schema, found)
    if as_json:
        print_json({"aggregate": schema.name, "id": key, "version": found.version, "state": state})
        return
    print_line(f"{schema.name} {key}, version {found.version}")
    for name, value in state.items():
        print_line(f"  {name}: {_text(value)}")


def _topics(session: BrokerSession, of: str) -> StoreTopics:
    from headrace.events.topics import find_topics

    return find_topics(session.cluster, *_names(of))


def _schema(of: str, program: Path) -> AggregateSchema:
    from headrace.events.aggregate import load_aggregate

    return load_aggregate(program, _names(of)[1])


def _names(of: str) -> tuple[str, str]:
    store, _, aggregate = of.rpartition(".")
    if not store or not aggregate:
        raise Misuse(f"{of!r} must be a store and a class of aggregates, such as shop.Cart.")
    return store, aggregate


def _read_time(text: str) -> datetime:
    try:
        position = read_position(text)
    except ValueError as fault:
        raise Misuse(str(fault)) from None
    if position.kind is not PositionKind.TIME:
        raise Misuse(f"{text!r} is not a time: use one such as 2026-01-31T12:00, or a time ago such as -5m.")
    return datetime.fromtimestamp(position.value / 1000, UTC)


def _document(recorded: RecordedEvent) -> dict[str, Any]:
    names = (
        "id",
        "version",
        "type",
        "type_version",
        "event_id",
        "command_id",
        "causation_id",
        "correlation_id",
        "actor",
    )
    return {
        **{name: getattr(recorded, name) for name in names},
        "time": _time(recorded.time),
        "fields": recorded.fields,
    }


def _changes(differences: tuple[StateChange, ...]) -> list[dict[str, Any]]:
    from headrace.events.history import ABSENT

    return [
        {"path": each.path}
        | {
            name: value
            for name, value in (("before", each.before), ("after", each.after))
            if value is not ABSENT
        }
        for each in differences
    ]


def _sentence(differences: tuple[StateChange, ...]) -> str | None:
    return (
        "; ".join(f"{path}: {_text(before)} → {_text(after)}" for path, before, after in differences) or None
    )


def _text(value: Any) -> str:
    from headrace.events.history import ABSENT

    return "∅" if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _time(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
