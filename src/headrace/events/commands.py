"""Commands, their replies, and the decisions of aggregates.

`decide` changes nothing and writes nothing.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headrace.events.errors import CommandFailed, Misuse, Rejected, UnreadableHistory, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from headrace.errors import HeadraceError
    from headrace.events.aggregate import Aggregate, AggregateSchema
    from headrace.events.event import Event

Kind = Literal["done", "rejected", "conflict", "failed", "unreadable"]
MAX_REASON_LENGTH: Final = 2_000
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and its metadata."""

    aggregate_id: str
    name: str
    arguments: Mapping[str, Any]
    """As JSON values."""
    command_id: str
    expected_version: int | None = None
    actor: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    """The span of the command, which its events carry too."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the command when it is repeated."""
        return self.aggregate_id, self.command_id

    def write(self) -> bytes:
        """The command as the value of a record."""
        return _dumps({name: getattr(self, name) for name in _FIELDS}).encode()

    @staticmethod
    def read(value: bytes) -> Command:
        """The command in the value of a record; `ValueError` if it holds none."""
        try:
            command = Command(**json.loads(value))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        wrong = [name for name, kinds in _TYPES.items() if not isinstance(getattr(command, name), kinds)]
        if wrong:
            raise ValueError(f"its {wrong[0]} is {getattr(command, wrong[0])!r}")
        return command


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "aggregate_id": (str,),
    "name": (str,),
    "arguments": (dict,),
    "command_id": (str,),
    "expected_version": (int, type(None)),
    "actor": (str, type(None)),
    "correlation_id": (str, type(None)),
    "causation_id": (str, type(None)),
    "traceparent": (str, type(None)),
}
_FIELDS: Final = tuple(_TYPES)


class ReplyRange(NamedTuple):
    """Which commands have replies in the topic of replies, up to some record."""

    commands: int = 0
    """All before this offset of the topic of commands."""
    events: int = 0
    """All with events before this offset of the topic of events; later events imply the replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The outcome of a command."""

    aggregate_id: str
    command_id: str
    kind: Kind
    version: int
    """The version of the aggregate after the command."""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the command."""
        return self.aggregate_id, self.command_id

    def write(self, covered: ReplyRange) -> bytes:
        """The reply as the value of a record, with the range that is complete once the record is stored."""
        return _dumps(
            [self.aggregate_id, self.command_id, self.kind, self.version, self.reason, *covered]
        ).encode()

    @staticmethod
    def read(value: bytes) -> tuple[CommandReply, ReplyRange]:
        """The reply in the value of a record, and the complete range; `ValueError` if it holds none."""
        try:
            aggregate_id, command_id, kind, version, reason, *covered = json.loads(value)
            reply = CommandReply(
                aggregate_id=aggregate_id, command_id=command_id, kind=kind, version=version, reason=reason
            )
            complete = ReplyRange(*map(int, covered))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        if kind != "done" and kind not in _ERRORS:
            raise ValueError(f"its kind is {kind!r}")
        return reply, complete

    def result(self) -> int:
        """The version; raises the error of the reply."""
        if self.kind == "done":
            return self.version
        raise _ERRORS[self.kind](self.reason)


def set_reply(future: Future[CommandReply], reply: CommandReply) -> None:
    """Set the reply of a command, whose caller may have canceled the future."""
    with suppress(InvalidStateError):
        future.set_result(reply)


def set_error(future: Future[CommandReply], error: HeadraceError) -> None:
    """Set the error of a command, whose caller may have canceled the future."""
    with suppress(InvalidStateError):
        future.set_exception(error)


_ERRORS: Final = {
    "rejected": Rejected,
    "conflict": VersionConflict,
    "failed": CommandFailed,
    "unreadable": UnreadableHistory,
}


MAX_EVENT_BYTES: Final = 900_000
"""Brokers accept batches of one megabyte by default."""
MAX_EVENTS: Final = 10_000
"""Of one command; they are stored all or none."""

logger = logging.getLogger(__name__)


class EncodedEvent(NamedTuple):
    """An event and its fields as JSON."""

    event: Event
    data: bytes


class Decision(NamedTuple):
    """The reply to a command, and its events."""

    reply: CommandReply
    events: tuple[EncodedEvent, ...] = ()


def decide(schema: AggregateSchema, aggregate: Aggregate, command: Command) -> Decision:
    """The decision of an aggregate on a command. An exception in its code becomes the reply."""
    if command.expected_version not in (None, aggregate.version):
        reason = (
            f"{schema.name} {aggregate.id!r} has version {aggregate.version}, and {command.name!r} expected "
            f"version {command.expected_version}: load it again, and repeat the command if it still applies."
        )
        return Decision(reply_to(command, "conflict", aggregate.version, reason))
    try:
        events = _yielded(schema, aggregate, command)
    except Rejected as rejection:
        return Decision(reply_to(command, "rejected", aggregate.version, str(rejection)))
    except Exception as error:  # noqa: BLE001  user code: its error is the reply
        return Decision(failed(schema, aggregate, command, error))
    return Decision(reply_to(command, "done", aggregate.version + len(events)), events)


def reply_to(command: Command, kind: Kind, version: int, reason: str = "") -> CommandReply:
    """The reply to a command."""
    return CommandReply(
        aggregate_id=command.aggregate_id,
        command_id=command.command_id,
        kind=kind,
        version=version,
        reason=reason[:MAX_REASON_LENGTH],
    )


def failed(schema: AggregateSchema, aggregate: Aggregate, command: Command, error: Exception) -> CommandReply:
    """The reply to a command that raised an error other than `Rejected`."""
    logger.warning("%s %s: the command %s failed", schema.name, aggregate.id, command.name, exc_info=error)
    what = str(error) if isinstance(error, Misuse) else f"{type(error).__name__}: {error}"
    reason = (
        f"the command {command.name!r} of {schema.name} {aggregate.id!r} failed; nothing was stored: {what}"
    )
    return reply_to(command, "failed", aggregate.version, reason)


def _yielded(schema: AggregateSchema, aggregate: Aggregate, command: Command) -> tuple[EncodedEvent, ...]:
    arguments = schema.command(command.name).read(command.arguments)
    method = getattr(aggregate, command.name)
    events = tuple(
        EncodedEvent(event, schema.schema_of(event).write(event))
        for event in islice(method(**arguments), MAX_EVENTS + 1)
    )
    if len(events) > MAX_EVENTS:
        raise Misuse(f"it yielded more than {MAX_EVENTS} events: split it into several commands.")
    for event, data in events:
        if len(data) > MAX_EVENT_BYTES:
            raise Misuse(
                f"{type(event).__name__} has {len(data)} bytes, and the maximum is {MAX_EVENT_BYTES}: store "
                "large values elsewhere, and a reference in the event."
            )
    return events
