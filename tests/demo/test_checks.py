"""The check of the demo notices what it is there to notice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headrace.demo.checks import Copies, Finding, Seen, findings
from headrace.demo.clock import ShopClock
from headrace.demo.database import Order
from headrace.demo.outcome import Outcome
from headrace.demo.world import Click, World

NINE = datetime(2026, 6, 1, 9, tzinfo=UTC)
NOBODY = "127.0.0.1:9"
"""Clients of the two are made, and never used."""
TEA = ("Green tea", 500, "Tea")


def order(number: int, minute: int) -> Order:
    at = NINE + timedelta(minutes=minute, seconds=30)
    return Order(order_id=f"o{number}", customer=1, email="ann@shop.example", product=1, amount=100, at=at)


@pytest.fixture
def seen() -> Seen:
    """Two orders, of which one is paid, and a click: all has come out as it should."""
    world, outcome = World(NOBODY, None, ShopClock()), Outcome(NOBODY)  # type: ignore[arg-type]
    world.orders = {each.order_id: each for each in (order(1, 0), order(2, 11))}
    world.paid, world.clicks = {"o1"}, {1: Click(1, NINE, "Rome")}
    outcome.status = {"o1": {"paid": 100}, "o2": {"paid": None}}
    outcome.visits = {1: {"city": "Rome"}}
    outcome.hot = {(NINE - timedelta(minutes=back), 1): 1 for back in range(4)}
    outcome.late[NINE - timedelta(minutes=4), 1] = 1
    outcome.spend, outcome.reserved, outcome.dead_mails = {1: 100}, {"o1", "o2"}, {"o2"}
    outcome.catalogue = {1: {"name": "Green tea", "price": 500, "title": "Tea"}}
    minutes = (NINE, NINE + timedelta(minutes=11))
    copies = Copies(
        revenue={(minute, 1): (1, 100) for minute in minutes},
        status={"o1": True, "o2": False},
        products={1: TEA},
        indexed={1: TEA},
        cached={1: TEA},
        spend={1: 100},
        mails=frozenset({"o1"}),
    )
    return Seen(world=world, outcome=outcome, copies=copies)


def broken(seen: Seen) -> list[Finding]:
    return [finding for finding in findings(seen) if not finding.holds]


def test_what_is_as_it_should_be_holds(seen: Seen) -> None:
    assert broken(seen) == []


def test_an_order_that_is_nowhere_is_missing(seen: Seen) -> None:
    seen.world.orders["o3"] = order(3, 30)
    assert [finding.expected - finding.found for finding in broken(seen)] == [1, 1, 1, 1]


def test_an_order_that_is_unpaid_though_it_was_paid_is_wrong(seen: Seen) -> None:
    seen.world.paid.add("o2")
    assert [finding.wrong for finding in broken(seen)] == [1]


def test_a_sum_that_counts_an_order_twice_is_wrong(seen: Seen) -> None:
    twice = replace(seen.copies, revenue={**seen.copies.revenue, (NINE, 1): (2, 200)})
    assert [finding.wrong for finding in broken(replace(seen, copies=twice))] == [1]


def test_a_click_that_is_in_a_window_and_late_for_it_is_wrong(seen: Seen) -> None:
    seen.outcome.late[NINE, 1] += 1
    assert [finding.wrong for finding in broken(seen)] == [1]


def test_a_click_that_met_another_city_is_wrong(seen: Seen) -> None:
    seen.outcome.visits[1] = {"city": "Oslo"}
    assert [finding.wrong for finding in broken(seen)] == [1]


def test_a_cache_that_has_another_price_does_not_hold(seen: Seen) -> None:
    stale = replace(seen.copies, cached={1: ("Green tea", 400, "Tea")})
    assert [finding.found for finding in broken(replace(seen, copies=stale))] == [0]


def test_a_mail_that_is_sent_and_dead_is_wrong(seen: Seen) -> None:
    both = replace(seen.copies, mails=frozenset({"o1", "o2"}))
    assert [finding.wrong for finding in broken(replace(seen, copies=both))] == [1]
