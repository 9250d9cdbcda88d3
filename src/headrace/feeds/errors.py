"""Errors of change feeds."""

from headrace.errors import HeadraceError, Misuse


class UnknownView(HeadraceError):
    """A view that does not exist."""


class InvalidToken(Misuse):
    """A string that is not a token of this view's feed."""


class TokenExpired(HeadraceError):
    """The log no longer holds all changes after a token: the feed must start again with the current rows."""
