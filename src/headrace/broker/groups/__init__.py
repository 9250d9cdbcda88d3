"""Consumer groups with the classic protocol: members share partitions and commit offsets.

Decisions are separate from I/O. `Group` is the state machine of one group: it takes events and the time, and
returns effects. `GroupCoordinator` holds all groups and carries the effects out: it sends responses, runs
timers, and writes the log.
"""

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.settings import GroupSettings

__all__ = ["GroupCoordinator", "GroupSettings"]
