"""Commands and their answers, and how they travel as records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.events.errors import CommandFailed, Rejected, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["done", "rejected", "conflict", "failed"]
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
            return Command(**json.loads(value))
        except TypeError as fault:
            raise ValueError(str(fault)) from fault


_FIELDS: Final = tuple(Command.__dataclass_fields__)


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

    def write(self, through: int) -> bytes:
        """The answer as the value of a record, with the offset of the next command from the topic."""
        return _dumps(
            [self.aggregate_id, self.command_id, self.kind, self.version, self.reason, through]
        ).encode()

    @staticmethod
    def read(value: bytes) -> tuple[Answer, int]:
        """The answer in the value of a record, and the offset of the next command from the topic."""
        aggregate_id, command_id, kind, version, reason, through = json.loads(value)
        answer = Answer(
            aggregate_id=aggregate_id, command_id=command_id, kind=kind, version=version, reason=reason
        )
        return answer, through

    def result(self) -> int:
        """The version, or the error that the answer is."""
        if self.kind == "done":
            return self.version
        raise _ERRORS[self.kind](self.reason)


_ERRORS: Final = {"rejected": Rejected, "conflict": VersionConflict, "failed": CommandFailed}
