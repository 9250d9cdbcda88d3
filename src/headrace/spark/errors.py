"""What can go wrong between Spark and the log."""

from headrace.errors import HeadraceError


class BadOption(HeadraceError):
    """An option of `format("headrace")` that is unknown, missing, or says something impossible."""


class BadColumns(HeadraceError):
    """Rows that cannot become records: a column is missing, unknown, or of the wrong type."""


class UnknownTopic(HeadraceError):
    """A topic, or a partition of it, that the cluster does not have."""


class DataLost(HeadraceError):
    """Records that were to be read are no longer in the log."""
