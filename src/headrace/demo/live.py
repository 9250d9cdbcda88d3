"""The state of the whole as the page is told it: one document, made whenever it is asked for."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.demo.checks import LAST
from headrace.demo.database import CUSTOMERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.demo.clock import ShopClock
    from headrace.demo.mailbox import Mailbox
    from headrace.demo.outcome import Outcome
    from headrace.demo.watch import Watch
    from headrace.demo.world import World
    from headrace.streams.report import Report

SHOWN_MAILS: Final = 8


class Live:
    """Asked by the page's server; told by the stage what is new and how the jobs do."""

    def __init__(
        self, world: World, outcome: Outcome, watch: Watch, mailbox: Mailbox, clock: ShopClock
    ) -> None:
        self.news = "Spark starts …"
        self.reports: Sequence[Report] = ()
        self._world = world
        self._outcome = outcome
        self._watch = watch
        self._mailbox = mailbox
        self._clock = clock

    def document(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        status = [row for key, row in list(self._outcome.status.items()) if key != LAST]
        paid = sum(bool(row.get("paid")) for row in status)
        mails = list(self._mailbox.mails.values())
        return {
            "clock": f"{self._clock.now():%H:%M}",
            "news": self.news,
            "customers": CUSTOMERS,
            "paid": paid,
            "unpaid": len(status) - paid,
            "waiting": max(len(self._world.orders) - len(status), 0),
            "late": len(self._outcome.late_clicks),
            "mails": len(mails),
            "dead": len(self._outcome.dead_mails),
            "newest_mails": [
                (str(mail["To"]).partition("@")[0], str(mail["Subject"]))
                for mail in islice(reversed(mails), SHOWN_MAILS)
            ],
            "rates": {topic: round(rate, 1) for topic, rate in self._watch.rates.items()},
            "findings": [asdict(finding) for finding in self._watch.findings],
            "jobs": [{"job": report.job, "batch_ms": report.batch_ms} for report in self.reports],
        }
