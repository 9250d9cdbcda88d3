"""How time is cut into pieces that are summed up: by panes for windows, by gaps for sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace.columns.panes import Hops
from headrace.columns.sessions import Gap

if TYPE_CHECKING:
    from collections.abc import Mapping

Cut: TypeAlias = Hops | Gap


def cut_of(told: Mapping[str, int]) -> Cut:
    """A cut from its plain data.

    >>> cut_of({"gap_us": 5})
    Gap(gap_us=5)
    """
    return Gap(**told) if "gap_us" in told else Hops(**told)
