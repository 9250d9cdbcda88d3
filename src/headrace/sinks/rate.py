"""Limits of rate as users write them: `30 per hour`, `5 per 10 minutes`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.durations import seconds_of
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

_RATE: Final = re.compile(r"(\d+)\s*(?:per|/)\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many in so long a time, wherever that time begins."""

    count: int
    seconds: float

    def wait_s(self, times: Sequence[float], now_s: float) -> float:
        """How long the next one has to wait, given when the last ones were.

        >>> Rate(count=2, seconds=60.0).wait_s([100.0, 110.0], 130.0)
        30.0
        """
        if len(times) < self.count:
            return 0.0
        return max(0.0, times[-self.count] + self.seconds - now_s)


def read_rate(text: str, what: str) -> Rate:
    """The rate in a text; `what` names its place in the complaint.

    >>> read_rate("30 per hour", "at_most")
    Rate(count=30, seconds=3600.0)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise Misuse(f'{what} is {text!r}, which is no rate: write "30 per hour", or "5 per 10 minutes".')
    period = match[2] if match[2][0].isdigit() else f"1 {match[2]}"
    seconds = seconds_of(period, what)
    if not seconds:
        raise Misuse(f"{what} is {text!r}: the time is to be longer than nothing.")
    return Rate(count=int(match[1]), seconds=seconds)
