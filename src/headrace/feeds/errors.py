"""What can stand in the way of a change feed."""

from headrace.errors import HeadraceError, Misuse


class UnknownView(HeadraceError):
    """No job has ever written a view of that name here."""


class BadToken(Misuse):
    """A text that is no token of this view's feed."""


class TokenGone(HeadraceError):
    """The changes after a token are no longer all there: a feed cannot go on from it without a gap."""
