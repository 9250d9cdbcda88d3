"""The checks of the demo: they compare what the simulator did with the results.

They can run at any time. While orders come in, some results are missing; at the end each result must exist
exactly once. A duplicate or a wrong row is an error at any time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from headrace.demo.outputs import CAPTURED, STOCK, ExternalRows, product_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.demo.outputs import ExternalReader, OutputTopicReader
    from headrace.demo.simulator import ShopSimulator

LAST: Final = "next-day"
"""The last order, which only advances event time."""
WINDOWS: Final = 5
"""Windows per click: five minutes, every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check: expected, found and wrong results."""

    claim: str
    expected: int
    found: int
    wrong: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything expected was found, and nothing is wrong."""
        return self.found == self.expected and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """The events of the simulator, and all results."""

    simulator: ShopSimulator
    outputs: OutputTopicReader
    external: ExternalRows


def run_checks(seen: CheckInput) -> list[CheckResult]:
    """Run all checks."""
    return [check(seen) for check in CHECKS]


def _status(seen: CheckInput) -> CheckResult:
    status = {key: bool(row.get("paid")) for key, row in list(seen.outputs.status.items()) if key != LAST}
    wrong = sum(is_paid != (key in seen.simulator.paid) for key, is_paid in status.items())
    return CheckResult(
        claim="orders are paid or unpaid, in log and PostgreSQL",
        expected=len(seen.simulator.orders),
        found=sum(seen.external.status.get(key) == is_paid for key, is_paid in status.items()),
        wrong=wrong + seen.outputs.doubled["order_status"],
    )


def _revenue(seen: CheckInput) -> CheckResult:
    truth: dict[tuple[datetime, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for order in list(seen.simulator.orders.values()):
        window = order.at.replace(second=0, microsecond=0), order.product
        count, cents = truth[window]
        truth[window] = count + 1, cents + order.amount
    return CheckResult(
        claim="orders are in their minute's revenue",
        expected=len(seen.simulator.orders),
        found=sum(count for count, _ in seen.external.revenue.values()),
        wrong=sum(truth[window] != sums for window, sums in seen.external.revenue.items()),
    )


def _hot(seen: CheckInput) -> CheckResult:
    truth: Counter[tuple[datetime, int]] = Counter()
    for click in list(seen.simulator.clicks.values()):
        minute = click.at.replace(second=0, microsecond=0)
        truth.update((minute - timedelta(minutes=back), click.product) for back in range(WINDOWS))
    found = Counter(dict(seen.outputs.hot)) + Counter(seen.outputs.late)
    return CheckResult(
        claim="times that clicks are in a window, or late",
        expected=truth.total(),
        found=found.total(),
        wrong=(found - truth).total(),
    )


def _visits(seen: CheckInput) -> CheckResult:
    visits = {number: row for number, row in list(seen.outputs.visits.items()) if number}
    wrong = sum(
        (row.get("city") or "") != seen.simulator.clicks[number].city for number, row in visits.items()
    )
    return CheckResult(
        claim="clicks met the profile of that moment",
        expected=len(seen.simulator.clicks),
        found=len(visits),
        wrong=wrong + seen.outputs.doubled["visits"],
    )


def _spend(seen: CheckInput) -> CheckResult:
    by_customer = defaultdict(list)
    for order in list(seen.simulator.orders.values()):
        by_customer[order.customer].append(order)
    truth = {}
    for customer, orders in by_customer.items():
        begin = orders[-1].at - timedelta(minutes=10)
        truth[customer] = sum(order.amount for order in orders if order.at > begin)
    return CheckResult(
        claim="customers have their spend, in Redis and view",
        expected=len(truth),
        found=sum(
            seen.outputs.spend.get(key) == seen.external.spend.get(key) == cents
            for key, cents in truth.items()
        ),
    )


def _catalogue(seen: CheckInput) -> CheckResult:
    viewed = {number: product_of(row) for number, row in seen.outputs.catalogue.items()}
    return CheckResult(
        claim="products are the same in index, cache and view",
        expected=len(seen.external.products),
        found=sum(
            seen.external.indexed.get(number) == seen.external.cached.get(number) == viewed.get(number) == row
            for number, row in seen.external.products.items()
        ),
    )


def _stock(seen: CheckInput) -> CheckResult:
    return CheckResult(
        claim="orders have their piece of the stock",
        expected=len(seen.simulator.orders),
        found=len(seen.outputs.reserved - {LAST}),
        wrong=seen.outputs.oversold + seen.outputs.doubled[STOCK],
    )


def _mails(seen: CheckInput) -> CheckResult:
    mails, dead = seen.external.mails - {LAST}, seen.outputs.dead_mails - {LAST}
    return CheckResult(
        claim="orders have a mail, or a dead letter",
        expected=len(seen.simulator.orders),
        found=len(mails | dead),
        wrong=len(mails & dead) + seen.outputs.doubled["order_status.mailer.dead"],
    )


def _garbled(seen: CheckInput) -> CheckResult:
    return CheckResult(
        claim="garbled clicks are dead letters",
        expected=seen.simulator.garbled,
        found=seen.outputs.records["hot_products.dead"],
    )


CHECKS: Final[tuple[Callable[[CheckInput], CheckResult], ...]] = (
    _status,
    _revenue,
    _hot,
    _visits,
    _spend,
    _catalogue,
    _stock,
    _mails,
    _garbled,
)


EVERY_S: Final = 0.5
RATE_S: Final = 5.0


class CheckMonitor(threading.Thread):
    """Runs the checks twice a second, from `start` to `close`."""

    def __init__(
        self, simulator: ShopSimulator, outputs: OutputTopicReader, external: ExternalReader
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self.results: Sequence[CheckResult] = ()
        self.rates: dict[str, float] = {}
        """Records a second of each topic over the last seconds, and `mails`, and `changes` of tables."""
        self._simulator = simulator
        self._outputs = outputs
        self._external = external
        self._closing = threading.Event()
        self._counts: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def is_complete(self) -> bool:
        """Whether all results exist, and none is wrong."""
        return bool(self.results) and all(result.holds for result in self.results)

    def run(self) -> None:
        """Run the checks until `close`."""
        while not self._closing.wait(EVERY_S):
            self.update()

    def update(self) -> None:
        """Run the checks once, and measure the rates."""
        external = self._external.read()
        self.results = run_checks(
            CheckInput(simulator=self._simulator, outputs=self._outputs, external=external)
        )
        counts = dict(self._outputs.records)
        counts["mails"] = len(external.mails)
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
        """Stop the thread."""
        self._closing.set()
        if self.is_alive():
            self.join()
