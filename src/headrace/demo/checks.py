"""The check of the demo: what was done in the world, and what has come of it, side by side.

It can be asked at any time. While the shop is open some things are under way; in the end all must be there,
once. What is wrong is wrong at any time: doubled, or not what it should be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace.demo.outcome import STOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.demo.outcome import Outcome
    from headrace.demo.world import World

LAST: Final = "next-day"
"""The order that only lets time pass."""
WINDOWS: Final = 5
"""In how many windows a click is: five minutes, every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim, how much of it is there, and how much is wrong."""

    claim: str
    expected: int
    found: int
    wrong: int = 0

    @property
    def holds(self) -> bool:
        """Whether all is there, and nothing wrong."""
        return self.found == self.expected and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What other systems than the log hold, read at one moment."""

    revenue: Mapping[tuple[datetime, int], tuple[int, int]]
    """Orders and cents of each minute and product, in PostgreSQL."""
    status: Mapping[str, bool]
    """Whether each order is paid, in PostgreSQL."""
    products: Mapping[int, tuple[Any, ...]]
    """The products with their categories, as the database itself joins them."""
    indexed: Mapping[int, tuple[Any, ...]]
    cached: Mapping[int, tuple[Any, ...]]
    spend: Mapping[int, int]
    """What Redis has of each customer."""
    mails: frozenset[str]
    """The orders of the mails in the mailbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What happened, and all that has come of it."""

    world: World
    outcome: Outcome
    copies: Copies


def findings(seen: Seen) -> list[Finding]:
    """Everything that is claimed."""
    return [check(seen) for check in CHECKS]


def _status(seen: Seen) -> Finding:
    status = {key: bool(row.get("paid")) for key, row in list(seen.outcome.status.items()) if key != LAST}
    wrong = sum(is_paid != (key in seen.world.paid) for key, is_paid in status.items())
    return Finding(
        claim="orders are paid or unpaid, in log and PostgreSQL",
        expected=len(seen.world.orders),
        found=sum(seen.copies.status.get(key) == is_paid for key, is_paid in status.items()),
        wrong=wrong + seen.outcome.doubled["order_status"],
    )


def _revenue(seen: Seen) -> Finding:
    truth: dict[tuple[datetime, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for order in list(seen.world.orders.values()):
        window = order.at.replace(second=0, microsecond=0), order.product
        count, cents = truth[window]
        truth[window] = count + 1, cents + order.amount
    return Finding(
        claim="orders are in their minute's revenue",
        expected=len(seen.world.orders),
        found=sum(count for count, _ in seen.copies.revenue.values()),
        wrong=sum(truth[window] != sums for window, sums in seen.copies.revenue.items()),
    )


def _hot(seen: Seen) -> Finding:
    truth: Counter[tuple[datetime, int]] = Counter()
    for click in list(seen.world.clicks.values()):
        minute = click.at.replace(second=0, microsecond=0)
        truth.update((minute - timedelta(minutes=back), click.product) for back in range(WINDOWS))
    found = Counter(dict(seen.outcome.hot)) + Counter(seen.outcome.late)
    return Finding(
        claim="times that clicks are in a window, or late",
        expected=truth.total(),
        found=found.total(),
        wrong=(found - truth).total(),
    )


def _visits(seen: Seen) -> Finding:
    visits = {number: row for number, row in list(seen.outcome.visits.items()) if number}
    wrong = sum((row.get("city") or "") != seen.world.clicks[number].city for number, row in visits.items())
    return Finding(
        claim="clicks met the profile of that moment",
        expected=len(seen.world.clicks),
        found=len(visits),
        wrong=wrong + seen.outcome.doubled["visits"],
    )


def _spend(seen: Seen) -> Finding:
    by_customer = defaultdict(list)
    for order in list(seen.world.orders.values()):
        by_customer[order.customer].append(order)
    truth = {}
    for customer, orders in by_customer.items():
        begin = orders[-1].at - timedelta(minutes=10)
        truth[customer] = sum(order.amount for order in orders if order.at > begin)
    return Finding(
        claim="customers have their spend, in Redis and view",
        expected=len(truth),
        found=sum(
            seen.outcome.spend.get(key) == seen.copies.spend.get(key) == cents for key, cents in truth.items()
        ),
    )


def _catalogue(seen: Seen) -> Finding:
    viewed = {number: product_of(row) for number, row in seen.outcome.catalogue.items()}
    return Finding(
        claim="products are the same in index, cache and view",
        expected=len(seen.copies.products),
        found=sum(
            seen.copies.indexed.get(number) == seen.copies.cached.get(number) == viewed.get(number) == row
            for number, row in seen.copies.products.items()
        ),
    )


def _stock(seen: Seen) -> Finding:
    return Finding(
        claim="orders have their piece of the stock",
        expected=len(seen.world.orders),
        found=len(seen.outcome.reserved - {LAST}),
        wrong=seen.outcome.oversold + seen.outcome.doubled[STOCK],
    )


def _mails(seen: Seen) -> Finding:
    mails, dead = seen.copies.mails - {LAST}, seen.outcome.dead_mails - {LAST}
    return Finding(
        claim="orders have a mail, or a dead letter",
        expected=len(seen.world.orders),
        found=len(mails | dead),
        wrong=len(mails & dead) + seen.outcome.doubled["order_status.mailer.dead"],
    )


def _garbled(seen: Seen) -> Finding:
    return Finding(
        claim="garbled clicks are dead letters",
        expected=seen.world.garbled,
        found=seen.outcome.records["hot_products.dead"],
    )


def product_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A product with its category, as all copies are compared."""
    return row["name"], int(row["price"]), row["title"]


CHECKS: Final[tuple[Callable[[Seen], Finding], ...]] = (
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
