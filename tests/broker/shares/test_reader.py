"""Delivery headers."""

from headrace.broker.shares.reader import read_delivery_headers
from headrace.protocol.records import RecordView


def test_headers_set_the_delivery_time_and_the_group() -> None:
    headers = (
        (("headrace-delay-ms", b"500"),),
        (("headrace-deliver-at", b"oops"),),
        (("headrace-group", b"x"),),
    )
    records = [
        RecordView(7, 1000, None, None, tuple((name, memoryview(value)) for name, value in each))
        for each in headers
    ]
    found = [read_delivery_headers(record, "mailer") for record in records]
    assert [(each.due_ms, each.is_for_group) for each in found] == [(1500, True), (0, True), (0, False)]
