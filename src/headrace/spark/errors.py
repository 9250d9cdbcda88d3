"""What can go wrong between Spark and the log."""

from headrace.errors import HeadraceError


class BadOption(HeadraceError):
    """An option of `format("headrace")` that is unknown, missing, or says something impossible."""


class BadColumns(HeadraceError):
    """Rows that cannot become records: a column is missing, unknown, or of the wrong type."""


class UnknownTopic(HeadraceError):
    """A topic, or a partition of it, that the cluster does not have."""


class UnreadableRecords(HeadraceError):
    """A record batch that cannot be read, where the rows have no column for the reason."""


class DataLost(HeadraceError):
    """Records that were to be read are no longer in the log."""


class SnapshotIncomplete(HeadraceError):
    """Captured tables that do not fit together yet."""


class BadCheckpoint(HeadraceError):
    """A checkpoint that lacks a file, or has one that Headrace cannot read."""
