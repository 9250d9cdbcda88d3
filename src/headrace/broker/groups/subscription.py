"""The topics that consumers subscribe to, read from what they send when they join.

Kafka's consumer protocol begins in all its versions with an i16 version and an array of topic names; what
follows (user data, owned partitions, rack) is the assignors' own business.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions, or None when one of them does not follow the consumer protocol."""
    topics: set[str] = set()
    for subscription in subscriptions:
        names = read_topics(subscription)
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def read_topics(subscription: bytes) -> list[str] | None:
    """The topic names of one subscription, or None when its bytes are something else."""
    try:
        return _read_names(subscription)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def _read_names(subscription: bytes) -> list[str]:
    version, count = _HEAD.unpack_from(subscription)
    position = _HEAD.size
    # A name takes two bytes at least: a count that cannot be true is refused before anything is made for it.
    if version < 0 or not 0 <= count <= (len(subscription) - position) // _LENGTH.size:
        raise ValueError
    names = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size + length
        if length < 0 or position > len(subscription):
            raise ValueError
        names.append(subscription[position - length : position].decode())
    return names
