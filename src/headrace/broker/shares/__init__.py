"""Share groups (KIP-932): a topic as a queue, where each record goes to one member, and is gone when done.

A record that waits is taken by whoever asks first, is locked for a while, and ends by an acknowledgement:
accepted, or rejected, which makes it a dead letter. Released or forgotten, it waits again, until it has been
delivered as often as the group allows.
"""

from headrace.broker.shares.coordinator import Shares
from headrace.broker.shares.settings import ShareSettings

__all__ = ["ShareSettings", "Shares"]
