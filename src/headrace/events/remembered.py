"""The newest answers of a partition, so that a command that comes again gets the answer that it had."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.events.command import Answer, Command


class Remembered:
    """At most so many answers; the oldest are forgotten. Failures are not answers: they may pass."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()

    def add(self, answer: Answer) -> None:
        """Remember an answer; the first one to a command is the one that counts."""
        if answer.kind in ("failed", "unreadable"):
            return
        self._answers.setdefault(answer.key, answer)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def find(self, command: Command) -> Answer | None:
        """The answer that the command had."""
        return self._answers.get(command.key)
