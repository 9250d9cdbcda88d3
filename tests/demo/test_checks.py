"""The check of the demo notices what it is there to notice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headrace.demo.checks import CheckInput, CheckResult, ExternalRows, OutputTopicReader, run_checks
from headrace.demo.database import ShopOrder
from headrace.demo.simulator import ShopClock, ShopSimulator, SimulatedClick

NINE = datetime(2026, 6, 1, 9, tzinfo=UTC)
NOBODY = "127.0.0.1:9"
"""Clients of the two are made, and never used."""
TEA = ("Green tea", 500, "Tea")


def order(number: int, minute: int) -> ShopOrder:
    at = NINE + timedelta(minutes=minute, seconds=30)
    return ShopOrder(
        order_id=f"o{number}", customer=1, email="ann@shop.example", product=1, amount=100, at=at
    )


@pytest.fixture
def seen() -> CheckInput:
    """Two orders, of which one is paid, and a click: all has come out as it should."""
    simulator, outputs = ShopSimulator(NOBODY, None, ShopClock()), OutputTopicReader(NOBODY)  # type: ignore[arg-type]
    simulator.orders = {each.order_id: each for each in (order(1, 0), order(2, 11))}
    simulator.paid, simulator.clicks = {"o1"}, {1: SimulatedClick(1, NINE, "Rome")}
    outputs.status = {"o1": {"paid": 100}, "o2": {"paid": None}}
    outputs.visits = {1: {"city": "Rome"}}
    outputs.hot = {(NINE - timedelta(minutes=back), 1): 1 for back in range(4)}
    outputs.late[NINE - timedelta(minutes=4), 1] = 1
    outputs.spend, outputs.reserved, outputs.dead_mails = {1: 100}, {"o1", "o2"}, {"o2"}
    outputs.catalogue = {1: {"name": "Green tea", "price": 500, "title": "Tea"}}
    minutes = (NINE, NINE + timedelta(minutes=11))
    external = ExternalRows(
        revenue={(minute, 1): (1, 100) for minute in minutes},
        status={"o1": True, "o2": False},
        products={1: TEA},
        indexed={1: TEA},
        cached={1: TEA},
        spend={1: 100},
        mails=frozenset({"o1"}),
    )
    return CheckInput(simulator=simulator, outputs=outputs, external=external)


def broken(seen: CheckInput) -> list[CheckResult]:
    return [result for result in run_checks(seen) if not result.holds]


def test_what_is_as_it_should_be_holds(seen: CheckInput) -> None:
    assert broken(seen) == []


def test_an_order_that_is_nowhere_is_missing(seen: CheckInput) -> None:
    seen.simulator.orders["o3"] = order(3, 30)
    assert [result.expected - result.found for result in broken(seen)] == [1, 1, 1, 1]


def test_an_order_that_is_unpaid_though_it_was_paid_is_wrong(seen: CheckInput) -> None:
    seen.simulator.paid.add("o2")
    assert [result.wrong for result in broken(seen)] == [1]


def test_a_sum_that_counts_an_order_twice_is_wrong(seen: CheckInput) -> None:
    twice = replace(seen.external, revenue={**seen.external.revenue, (NINE, 1): (2, 200)})
    assert [result.wrong for result in broken(replace(seen, external=twice))] == [1]


def test_a_click_that_is_in_a_window_and_late_for_it_is_wrong(seen: CheckInput) -> None:
    seen.outputs.late[NINE, 1] += 1
    assert [result.wrong for result in broken(seen)] == [1]


def test_a_click_that_met_another_city_is_wrong(seen: CheckInput) -> None:
    seen.outputs.visits[1] = {"city": "Oslo"}
    assert [result.wrong for result in broken(seen)] == [1]


def test_a_cache_that_has_another_price_does_not_hold(seen: CheckInput) -> None:
    stale = replace(seen.external, cached={1: ("Green tea", 400, "Tea")})
    assert [result.found for result in broken(replace(seen, external=stale))] == [0]


def test_a_mail_that_is_sent_and_dead_is_wrong(seen: CheckInput) -> None:
    both = replace(seen.external, mails=frozenset({"o1", "o2"}))
    assert [result.wrong for result in broken(replace(seen, external=both))] == [1]
