"""Event sourcing: aggregates decide on commands, and what they decide is the log.

>>> from headrace.events import Aggregate, Event, EventStore, Rejected
"""

from headrace.events.aggregate import Aggregate
from headrace.events.errors import (
    CommandFailed,
    CommandTimeout,
    Rejected,
    UnknownEvent,
    UnreadableHistory,
    VersionConflict,
)
from headrace.events.event import Event, RecordedEvent
from headrace.events.partition_processor import Limits
from headrace.events.projection import Projection
from headrace.events.store import EventStore

__all__ = [
    "Aggregate",
    "CommandFailed",
    "CommandTimeout",
    "Event",
    "EventStore",
    "Limits",
    "Projection",
    "RecordedEvent",
    "Rejected",
    "UnknownEvent",
    "UnreadableHistory",
    "VersionConflict",
]
