"""Commands on their way to their answers, and the one signature by which they are executed."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from headrace.events.errors import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from headrace.events.command import Answer, Command
    from headrace.events.dispatch import Dispatch
    from headrace.events.projection import Projection

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A command that was handed over, who hears of its answer, and how long that is waited for."""

    command: Command
    answer: Future[Answer]
    dispatch: Dispatch
    aggregate: str
    wait_for: Projection | None
    timeout_s: float
    deadline: float
    """On the clock of `time.monotonic`."""

    @property
    def remaining_s(self) -> float:
        """How long the caller still waits."""
        return remaining_s(self.deadline)

    def give_up(self) -> Unanswered:
        """The error of a command whose answer did not come in time; nobody waits for it any more."""
        command = self.command
        self.dispatch.forget(command, self.answer)
        return Unanswered(
            f"{self.aggregate} {command.aggregate_id!r} did not answer {command.name!r} within "
            f"{self.timeout_s:g} s: no process handles its partition, or the broker is away. Whether it was "
            f"executed is not known; executing it again with command_id={command.command_id!r} does it once.",
            command_id=command.command_id,
        )


def remaining_s(deadline: float) -> float:
    """The time up to a deadline of `time.monotonic`; never nothing, which sockets take for "do not wait"."""
    return max(deadline - time.monotonic(), 0.01)


def called_like(model: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Let a function be called as `model` is, as people, editors and type checkers see it."""

    def sign(function: Callable[..., R]) -> Callable[P, R]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(model).replace(return_annotation=returned)
        cast("Any", function).__signature__ = signature
        return cast("Callable[P, R]", function)

    return sign
