"""What can stand in the way of a capture."""

from headrace.errors import HeadraceError, Misuse


class CaptureError(HeadraceError):
    """A capture cannot go on, and trying again would not help."""


class UnfitDatabase(Misuse):
    """The database is not set up for capture, or this user may not read it: the message says what to do."""


class SourceLost(HeadraceError):
    """The database does not answer, or stopped answering: it is tried again."""


class SlotTaken(HeadraceError):
    """Another process reads the slot."""


class SlotGone(CaptureError):
    """The slot is no longer there, or the database has removed the log that it stood for."""


class TooFarBehind(CaptureError):
    """The database held more of its log for the capture than was allowed; the slot was dropped."""


class CaptureStopped(HeadraceError):
    """Somebody asked the capture to stop: not a failure."""


class UnknownCapture(HeadraceError):
    """No capture of that name has ever run on this broker."""


class CaptureFailed(HeadraceError):
    """A capture in a process of its own gave up; the message is what it said."""
