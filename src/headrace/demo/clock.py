"""The time of the demo's shop, in which a minute takes some seconds: windows close while one looks on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

MINUTE_S: Final = 4.0
"""What a minute of the shop takes."""
OPENING: Final = datetime(2026, 6, 1, 9, tzinfo=UTC)


class ShopClock:
    """Nine o'clock when it is made; from there on it goes faster than others."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._ahead = timedelta()

    def now(self) -> datetime:
        """What time it is in the shop."""
        passed_s = (time.monotonic() - self._begin_s) * 60 / MINUTE_S
        return OPENING + self._ahead + timedelta(seconds=passed_s)

    def jump(self, by: timedelta) -> None:
        """Let so much time pass at once."""
        self._ahead += by
