"""When a job that failed is started again: soon at first, later if it fails again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_FIRST_S: Final = 1.0
DEFAULT_LONGEST_S: Final = 60.0
DEFAULT_HEALTHY_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The failures of one job, and the wait that each of them costs.

    The wait doubles from `first_s` to `longest_s`. A job that ran for `healthy_s` before it failed is taken
    as one that was well: the wait begins anew. After `limit` failures in a row (if there is one) it is not
    started again.
    """

    first_s: float = DEFAULT_FIRST_S
    longest_s: float = DEFAULT_LONGEST_S
    healthy_s: float = DEFAULT_HEALTHY_S
    limit: int | None = None
    in_a_row: int = 0

    def wait_s(self, *, ran_for_s: float) -> float | None:
        """How long to wait after a failure just now, or None: it is enough.

        >>> restarts = Restarts(limit=3)
        >>> [restarts.wait_s(ran_for_s=5) for _ in range(3)]
        [1.0, 2.0, None]
        """
        if ran_for_s >= self.healthy_s:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.limit is not None and self.in_a_row >= self.limit:
            return None
        doublings = min(self.in_a_row - 1, 30)
        return float(min(self.first_s * 2**doublings, self.longest_s))
