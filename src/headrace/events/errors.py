"""What can go wrong between a command and its events."""

from __future__ import annotations

from headrace.errors import HeadraceError, Misuse

__all__ = [
    "BadEvent",
    "CommandFailed",
    "Misuse",
    "Rejected",
    "Unanswered",
    "Unkeepable",
    "UnknownEvent",
    "UnreadableEvent",
    "UnreadableHistory",
    "VersionConflict",
]


class Rejected(HeadraceError):
    """A command that its aggregate refused: raised in the command, and again where it was executed."""


class VersionConflict(Rejected):
    """A command that was meant for another version of its aggregate than the current one."""


class CommandFailed(HeadraceError):
    """A command that raised something else than `Rejected`: a fault of the program. Nothing was stored."""


class Unanswered(HeadraceError):
    """A command whose answer did not come in time: whether it was executed is not known.

    The same command with the same `command_id` can be executed again, and counts once.
    """

    def __init__(self, message: str, *, command_id: str) -> None:
        super().__init__(message)
        self.command_id = command_id


class UnknownEvent(HeadraceError):
    """An event in the log that this program has no class for, or only an older one."""


class BadEvent(HeadraceError):
    """An event whose fields are not those of its class."""


class UnreadableEvent(BadEvent):
    """A record that is no event: another program wrote it, or it is damaged."""


class UnreadableHistory(HeadraceError):
    """An aggregate whose events cannot all be read: it takes no commands, because its state is not known."""


class Unkeepable(HeadraceError):
    """State that has no form in JSON, so that no snapshot can be made of it."""
