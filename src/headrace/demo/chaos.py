"""Parts of the shop are killed at random (kill -9) while it is open, and have to come back."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.demo.shop import Site
    from headrace.demo.worker import Worker
    from headrace.testing.redis import RedisServer

EVERY_S: Final = 3.0
"""Between two kills."""


class Chaos:
    """One part is killed every some seconds, each once before any is killed again.

    A server that is down comes back at once, and what uses it waits for it; a worker is started again by the
    stage, and what it had in its hands is delivered again.
    """

    def __init__(
        self, site: Site, workers: Sequence[Worker], *, every_s: float = EVERY_S, seed: int | None = None
    ) -> None:
        self._parts: dict[str, Callable[[], None]] = {
            "the broker": site.broker.restart,
            "PostgreSQL": site.database.restart,
            "Redis": partial(_restart, site.cache),
            **{f"the worker {worker.name}": worker.kill for worker in workers},
        }
        self._random = random.Random(seed)
        self._every_s = every_s
        self._next_s = 0.0
        self._left: list[str] = []
        self._thread: threading.Thread | None = None
        self.kills: list[str] = []
        """What was killed, in its order."""

    def turn(self) -> str | None:
        """Kill a part if it is time to; what is to be said of it."""
        now_s = time.monotonic()
        self._next_s = self._next_s or now_s + self._every_s / 2
        if now_s < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return None
        self._next_s = now_s + self._every_s
        self._left = self._left or self._random.sample(sorted(self._parts), len(self._parts))
        part = self._left.pop()
        self.kills.append(part)
        # In a thread: a server takes a moment to come back, and the picture goes on.
        self._thread = threading.Thread(target=self._parts[part], name="chaos", daemon=True)
        self._thread.start()
        return f"Chaos: {part} was killed (kill -9)."

    def settle(self) -> None:
        """Return when what was killed last is back."""
        if self._thread is not None:
            self._thread.join()


def _restart(cache: RedisServer) -> None:
    cache.kill()
    cache.start()
