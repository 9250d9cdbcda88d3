"""What may become of a record that a share group looks at.

(seen) ─▶ available ─▶ acquired ─▶ done              accepted, or nothing there to be done
              ▲            ├─────▶ available         released, or its lock ran out
              └────────────┘
                           └─────▶ archiving ─▶ done rejected, or delivered too often: a dead letter
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Acknowledgement(enum.IntEnum):
    """How a member is done with a record, by Kafka's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class StoredState(enum.IntEnum):
    """What the log says of a record; one that it does not mention is as if it had never been seen."""

    AVAILABLE = 0
    DONE = 1
    ARCHIVING = 2


class Reason(enum.IntEnum):
    """Why a record became a dead letter."""

    NONE = 0
    REJECTED = 1
    LIMIT = 2
    UNREADABLE = 3

    @property
    def text(self) -> str:
        """The reason in words, as Apache Kafka 4.4 puts them (KIP-1191)."""
        return _TEXTS[self]


_TEXTS = {
    Reason.NONE: "",
    Reason.REJECTED: "Offset rejected by client.",
    Reason.LIMIT: "Offset delivery count exceeded the threshold.",
    Reason.UNREADABLE: "Offset cannot be read.",
}


class Burial(NamedTuple):
    """A record on its way to the dead letters."""

    reason: Reason
    deliveries: int
    position: int = -1
    """Where the topic of dead letters ended when this was decided: the letter lies there or further on."""


NOT_HELD_BACK: Final = -1


class Run(NamedTuple):
    """Records in a row that the log says the same of."""

    first: int
    last: int
    state: StoredState
    deliveries: int = 0
    reason: Reason = Reason.NONE
    position: int = -1
    """Of a record on its way to the dead letters, `Burial.position`; of one that was released, until when it
    is held back, in milliseconds since 1970."""
