"""Errors of the event store."""

from __future__ import annotations

from headrace.errors import HeadraceError, Misuse

__all__ = [
    "CommandFailed",
    "CommandTimeout",
    "InvalidEvent",
    "Misuse",
    "Rejected",
    "StateNotSerializable",
    "UnknownEvent",
    "UnreadableEvent",
    "UnreadableHistory",
    "VersionConflict",
]


class Rejected(HeadraceError):
    """A command that its aggregate rejected: raised in the command, and again by `execute`."""


class VersionConflict(Rejected):
    """A command whose expected version is not the current version of its aggregate."""


class CommandFailed(HeadraceError):
    """A command that raised an error other than `Rejected`. Nothing was stored."""


class CommandTimeout(HeadraceError):
    """A command without a reply in time: it is not known whether it was executed.

    Repeat it with the same `command_id`: it is executed at most once.
    """

    def __init__(self, message: str, *, command_id: str) -> None:
        super().__init__(message)
        self.command_id = command_id


class UnknownEvent(HeadraceError):
    """An event in the log whose class this program does not have, or only in an older version."""


class InvalidEvent(HeadraceError):
    """An event with other fields than its class."""


class UnreadableEvent(InvalidEvent):
    """A record in the topic of events that is not an event: another program wrote it, or it is damaged."""


class UnreadableHistory(HeadraceError):
    """An aggregate whose events cannot all be read: it refuses commands, because its state is unknown."""


class StateNotSerializable(HeadraceError):
    """State of an aggregate that cannot be stored as JSON in a snapshot."""
