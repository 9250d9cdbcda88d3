"""The base classes of every error that Headrace raises, and suggestions for misspelled names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HeadraceError(Exception):
    """The base class of Headrace's errors. The message says what failed, why, and what to do."""


class Misuse(HeadraceError):
    """A command, a program or its configuration is wrong: no request was sent."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suggestion of the name most similar to `name`, or an empty string.

    >>> did_you_mean("ordrs", ["orders", "payments"])
    " Did you mean 'orders'?"
    """
    from difflib import get_close_matches  # slow to import, and rarely needed

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
