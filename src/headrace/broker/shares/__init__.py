"""Share groups (KIP-932): a topic as a queue, in which each record is delivered to one member.

An available record is acquired by the member that fetches first, with a lock of limited duration. An
acknowledgment accepts it, or rejects it, which makes it a dead letter. A record that is released, or whose
lock expires, is available again until it has reached the delivery limit of the group.
"""

from headrace.broker.shares.coordinator import ShareGroupCoordinator
from headrace.broker.shares.settings import ShareSettings

__all__ = ["ShareGroupCoordinator", "ShareSettings"]
