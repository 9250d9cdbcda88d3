"""Delivery headers."""

from headrace.broker.shares.reader import read_delivery_headers
from headrace.protocol.records import Record


def test_headers_set_the_delivery_time_and_the_group() -> None:
    headers = (
        (("headrace-delay-ms", b"500"),),
        (("headrace-deliver-at", b"oops"),),
        (("headrace-group", b"x"),),
    )
    found = [read_delivery_headers(Record(7, 1000, b"k", b"v", each), "mailer") for each in headers]
    assert [(each.due_ms, each.is_for_group) for each in found] == [(1500, True), (0, True), (0, False)]
