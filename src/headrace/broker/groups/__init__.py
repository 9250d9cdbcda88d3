"""Consumer groups, the classic protocol: members share partitions, and the group remembers where it read.

The decisions stand apart from the wiring. `Group` is the state machine of one group: it takes an event and
the time, and leaves what is to be done in its outbox. `Groups` owns them all, and does it: it answers the
waiting requests, keeps the timers, and writes what must survive to the log.
"""

from headrace.broker.groups.coordinator import Groups
from headrace.broker.groups.settings import GroupSettings

__all__ = ["GroupSettings", "Groups"]
