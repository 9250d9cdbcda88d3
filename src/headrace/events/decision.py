"""What a command decides: events, or a rejection. Nothing is changed, and nothing is written."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.events.command import LONGEST_REASON, Answer
from headrace.events.errors import Misuse, Rejected

if TYPE_CHECKING:
    from headrace.events.aggregate import Aggregate, AggregateForm
    from headrace.events.command import Command, Kind
    from headrace.events.event import Event

LARGEST_EVENT_BYTES: Final = 900_000
"""Brokers take a megabyte in one batch, unless they are set otherwise."""
MOST_EVENTS: Final = 10_000
"""Of one command: they are stored together or not at all."""

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """An event, and its fields as JSON."""

    event: Event
    data: bytes


class Decision(NamedTuple):
    """The answer to a command, and the events that make it true."""

    answer: Answer
    events: tuple[Written, ...] = ()


def decide(form: AggregateForm, aggregate: Aggregate, command: Command) -> Decision:
    """What an aggregate makes of a command. Whatever its code raises becomes the answer."""
    if command.expected_version not in (None, aggregate.version):
        reason = (
            f"{form.name} {aggregate.id!r} is at version {aggregate.version}, and {command.name!r} was meant "
            f"for version {command.expected_version}: load it again, and decide again."
        )
        return Decision(answer_to(command, "conflict", aggregate.version, reason))
    try:
        events = _yielded(form, aggregate, command)
    except Rejected as rejection:
        return Decision(answer_to(command, "rejected", aggregate.version, str(rejection)))
    except Exception as fault:  # noqa: BLE001  a user's code: its fault is the answer, and the handler goes on
        return Decision(failed(form, aggregate, command, fault))
    return Decision(answer_to(command, "done", aggregate.version + len(events)), events)


def answer_to(command: Command, kind: Kind, version: int, reason: str = "") -> Answer:
    """The answer to a command."""
    return Answer(
        aggregate_id=command.aggregate_id,
        command_id=command.command_id,
        kind=kind,
        version=version,
        reason=reason[:LONGEST_REASON],
    )


def failed(form: AggregateForm, aggregate: Aggregate, command: Command, fault: Exception) -> Answer:
    """The answer to a command that a fault of the program ended."""
    logger.warning("%s %s: the command %s failed", form.name, aggregate.id, command.name, exc_info=fault)
    what = str(fault) if isinstance(fault, Misuse) else f"{type(fault).__name__}: {fault}"
    reason = (
        f"the command {command.name!r} of {form.name} {aggregate.id!r} failed, and nothing was stored: {what}"
    )
    return answer_to(command, "failed", aggregate.version, reason)


def _yielded(form: AggregateForm, aggregate: Aggregate, command: Command) -> tuple[Written, ...]:
    arguments = form.command(command.name).read(command.arguments)
    method = getattr(aggregate, command.name)
    events = tuple(
        Written(event, form.form_for(event).write(event))
        for event in islice(method(**arguments), MOST_EVENTS + 1)
    )
    if len(events) > MOST_EVENTS:
        raise Misuse(f"it yielded more than {MOST_EVENTS} events: make several commands of it.")
    for event, data in events:
        if len(data) > LARGEST_EVENT_BYTES:
            raise Misuse(
                f"{type(event).__name__} takes {len(data)} bytes, and an event may take "
                f"{LARGEST_EVENT_BYTES}: keep large things elsewhere, and their names in events."
            )
    return events
