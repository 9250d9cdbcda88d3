"""What a producer is told at a topic's bound."""

from headrace.errors import HeadraceError


class TopicFull(HeadraceError):
    """A batch that the topic does not take at its bound: it is not stored, and not to be repeated."""


class MustWait(HeadraceError):
    """A batch for which there is no room yet: its producer waits until consumers have made some."""


class WaitedInVain(HeadraceError):
    """A batch for which there was no room in time: it is not stored, and its producer may try again."""
