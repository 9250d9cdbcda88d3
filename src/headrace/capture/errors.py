"""Errors of captures."""

from headrace.errors import HeadraceError, Misuse


class CaptureError(HeadraceError):
    """The capture cannot continue, and a retry would not help."""


class PreflightFailed(Misuse):
    """The database is not configured for capture, or a privilege is missing; the message says what to do."""


class DatabaseUnavailable(HeadraceError):
    """The database does not respond; the capture retries."""


class SlotInUse(HeadraceError):
    """Another process reads the slot."""


class SlotLost(CaptureError):
    """The replication slot does not exist any more, or the server has removed its WAL."""


class WalLimitExceeded(CaptureError):
    """The slot retained more WAL than the limit, and was dropped."""


class CaptureStopped(HeadraceError):
    """The capture was requested to stop; not a failure."""


class UnknownCapture(HeadraceError):
    """No capture of that name has ever run on this broker."""


class CaptureFailed(HeadraceError):
    """A capture in its own process failed; the message is that of the process."""
