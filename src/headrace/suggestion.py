"""What the user may have meant by a name that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the name most like `name`, or nothing.

    >>> did_you_mean("ordrs", ["orders", "payments"])
    " Did you mean 'orders'?"
    """
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
