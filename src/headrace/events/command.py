"""Commands and their answers, and how they travel as records."""

from __future__ import annotations

import json
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headrace.events.errors import CommandFailed, Rejected, UnreadableHistory, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from headrace.errors import HeadraceError

Kind = Literal["done", "rejected", "conflict", "failed", "unreadable"]
LONGEST_REASON: Final = 2_000
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command on its way to the handler of its aggregate."""

    aggregate_id: str
    name: str
    arguments: Mapping[str, Any]
    """As JSON has them."""
    command_id: str
    expected_version: int | None = None
    actor: str | None = None
    correlation: str | None = None
    causation: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """By what it is known again when it is repeated."""
        return self.aggregate_id, self.command_id

    def write(self) -> bytes:
        """The command as the value of a record."""
        return _dumps({name: getattr(self, name) for name in _FIELDS}).encode()

    @staticmethod
    def read(value: bytes) -> Command:
        """The command in the value of a record; `ValueError` when it is none."""
        try:
            command = Command(**json.loads(value))
        except (TypeError, RecursionError) as fault:
            raise ValueError(str(fault)) from fault
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
    "correlation": (str, type(None)),
    "causation": (str, type(None)),
}
_FIELDS: Final = tuple(_TYPES)


class Reach(NamedTuple):
    """Which commands have answers in the topic of answers."""

    commands: int = 0
    """Those before this offset in the topic of commands."""
    events: int = 0
    """Those whose events lie before this offset in the topic of events; later events tell it themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a command."""

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

    def write(self, reach: Reach) -> bytes:
        """The answer as the value of a record, with what is answered when it is there."""
        return _dumps(
            [self.aggregate_id, self.command_id, self.kind, self.version, self.reason, *reach]
        ).encode()

    @staticmethod
    def read(value: bytes) -> tuple[Answer, Reach]:
        """The answer in the value of a record, and what is answered when it is there, or `ValueError`."""
        try:
            aggregate_id, command_id, kind, version, reason, *reach = json.loads(value)
            answer = Answer(
                aggregate_id=aggregate_id, command_id=command_id, kind=kind, version=version, reason=reason
            )
            reached = Reach(*map(int, reach))
        except (TypeError, RecursionError) as fault:
            raise ValueError(str(fault)) from fault
        if kind != "done" and kind not in _ERRORS:
            raise ValueError(f"its kind is {kind!r}")
        return answer, reached

    def result(self) -> int:
        """The version, or the error that the answer is."""
        if self.kind == "done":
            return self.version
        raise _ERRORS[self.kind](self.reason)


def hand_over(waiting: Future[Answer], answer: Answer) -> None:
    """Give an answer to whoever waits for it, if they still do: they may give up at this very moment."""
    with suppress(InvalidStateError):
        waiting.set_result(answer)


def fail(waiting: Future[Answer], fault: HeadraceError) -> None:
    """Give an error to whoever waits for an answer, if they still do."""
    with suppress(InvalidStateError):
        waiting.set_exception(fault)


_ERRORS: Final = {
    "rejected": Rejected,
    "conflict": VersionConflict,
    "failed": CommandFailed,
    "unreadable": UnreadableHistory,
}
