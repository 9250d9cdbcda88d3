"""Who looks at everything, once a second: the check, and how much flows where."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.demo.checks import Seen, findings
from headrace.demo.outcome import CAPTURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.demo.checks import Finding
    from headrace.demo.copies import CopyReader
    from headrace.demo.outcome import Outcome
    from headrace.demo.world import World

EVERY_S: Final = 0.5
RATE_S: Final = 5.0


class Watch(threading.Thread):
    """Looks from `start` to `close`."""

    def __init__(self, world: World, outcome: Outcome, copies: CopyReader) -> None:
        super().__init__(name="watch", daemon=True)
        self.findings: Sequence[Finding] = ()
        self.rates: dict[str, float] = {}
        """Records a second of each topic over the last seconds, and `mails`, and `changes` of tables."""
        self._world = world
        self._outcome = outcome
        self._copies = copies
        self._closing = threading.Event()
        self._counts: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def is_complete(self) -> bool:
        """Whether everything that happened has come out, and nothing is wrong."""
        return bool(self.findings) and all(finding.holds for finding in self.findings)

    def run(self) -> None:
        """Look until closed."""
        while not self._closing.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        copies = self._copies.read()
        self.findings = findings(Seen(world=self._world, outcome=self._outcome, copies=copies))
        counts = dict(self._outcome.records)
        counts["mails"] = len(copies.mails)
        counts["changes"] = sum(counts.get(topic, 0) for topic in CAPTURED)
        self._measure(counts)

    def _measure(self, counts: dict[str, int]) -> None:
        now_s = time.monotonic()
        self._counts.append((now_s, counts))
        while self._counts[0][0] < now_s - RATE_S:
            self._counts.popleft()
        begin_s, before = self._counts[0]
        passed_s = max(now_s - begin_s, EVERY_S)
        self.rates = {name: (count - before.get(name, 0)) / passed_s for name, count in counts.items()}

    def close(self) -> None:
        """Stop looking."""
        self._closing.set()
        if self.is_alive():
            self.join()
