"""What can be wrong with rows that are to become records."""

from headrace.errors import HeadraceError


class UnfitRows(HeadraceError):
    """Rows that no topic can take: the caller's mistake, and nothing was encoded."""
