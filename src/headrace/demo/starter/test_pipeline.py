"""Tests of the jobs on a real broker and a real Spark: given rows, expected rows."""

from datetime import UTC, datetime, timedelta

from headrace.testing import run
from pipeline import alerts, order_status, revenue


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def order(number: int, product: str, amount: float, second: int) -> dict[str, object]:
    return {"order_id": f"o{number}", "product": product, "amount": amount, "at": at(second)}


def test_an_order_is_paid_or_unpaid() -> None:
    orders = [order(1, "tea", 4.5, 0), order(2, "cup", 9.0, 0), order(3, "tea", 1.0, 60)]
    payments = [
        {"order_id": "o1", "paid": 4.5, "paid_at": at(1)},
        {"order_id": "o3", "paid": 1.0, "paid_at": at(60)},
    ]
    rows = run(order_status, {"orders": orders, "payments": payments})
    assert {row["order_id"]: row["paid"] for row in rows} == {"o1": 4.5, "o2": None, "o3": 1.0}


def test_revenue_is_by_category() -> None:
    products = [
        ("tea", {"product": "tea", "category": "food"}),
        ("cup", {"product": "cup", "category": "china"}),
    ]
    orders = [
        order(1, "tea", 4.5, 0),
        order(2, "cup", 9.0, 0),
        order(3, "tea", 1.0, 0),
        order(4, "tea", 1.0, 60),
    ]
    rows = run(revenue, {"products": products, "orders": orders})
    assert {row["category"]: row["revenue"] for row in rows} == {"food": 5.5, "china": 9.0}


def test_only_hot_machines_raise_an_alert() -> None:
    events = [{"device": "press-7", "temperature": 93.5}, {"device": "press-8", "temperature": 60.0}]
    rows = run(alerts, {"device_events": events})
    assert [row["device"] for row in rows] == ["press-7"]
