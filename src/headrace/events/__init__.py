"""Event sourcing: aggregates decide on commands, and what they decide is the log.

>>> from headrace.events import Aggregate, Event, EventStore, Rejected
"""

from headrace.events.aggregate import Aggregate
from headrace.events.errors import (
    CommandFailed,
    Rejected,
    Unanswered,
    UnknownEvent,
    UnreadableHistory,
    VersionConflict,
)
from headrace.events.event import Event
from headrace.events.limits import Limits
from headrace.events.projection import Projection
from headrace.events.recorded import Recorded
from headrace.events.store import EventStore

__all__ = [
    "Aggregate",
    "CommandFailed",
    "Event",
    "EventStore",
    "Limits",
    "Projection",
    "Recorded",
    "Rejected",
    "Unanswered",
    "UnknownEvent",
    "UnreadableHistory",
    "VersionConflict",
]
