"""Rows as mails to a real mail server: each once, grouped, limited, and never to a stranger."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Misuse
from headrace.folders import LocalFolder
from headrace.sinks.email import EmailSink, RateLimit, email, parse_rate_limit
from headrace.sinks.sink import IncompatibleTarget, RowsRejected, Sink, SinkContext, TargetUnavailable
from headrace.testing.sinks import SinkContract
from tests.sinks import writing
from tests.sinks.mailbox import TAKEN, Mailbox

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.string(),
        "product": pa.string(),
        "price": pa.decimal128(8, 2),
        "at": pa.timestamp("us", "UTC"),
    }
)
ANN, BOB = "ann@example.com", "bob@example.com"
SHOP = {"sender": "The shop <shop@example.com>", "subject": "Order {id}"}


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(
        job="shop.mails", generation=1, schema=SCHEMA, folder=LocalFolder(tmp_path), state=tmp_path
    )


def order(number: int, customer: str | None = ANN, product: str = "tea") -> dict[str, Any]:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return {"id": number, "customer": customer, "product": product, "price": Decimal("3.50"), "at": noon}


def write(sink: EmailSink, context: SinkContext, batch: int, *orders: dict[str, Any]) -> int | None:
    return writing.write(sink, context, batch, pa.Table.from_pylist(list(orders), schema=SCHEMA))


class TestTheContract(SinkContract):
    replaces = False
    is_atomic = False

    @pytest.fixture(autouse=True)
    def _own_mailbox(self) -> Iterator[None]:
        with Mailbox() as self._mailbox:
            yield

    def sink(self) -> Sink:
        template = "{product} {revenue}"
        return email(ANN, sender="s@example.com", subject="x", body=template, smtp=self._mailbox.url)

    def read(self) -> list[dict[str, Any]]:
        analyzer = [text.split() for text in self._mailbox.texts()]
        return [{"product": product, "revenue": float(revenue)} for product, revenue in analyzer]


def test_a_row_becomes_a_mail(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        body = "{product}: {price:.1f} at {at:%H:%M}, naïvely"
        sink = email("{customer}", body=body, html="<b>{product}</b>", smtp=mailbox.url, **SHOP)
        assert write(sink, context, 0, order(1, product="<tea> & cup")) == 0
    (mail,) = mailbox.mails
    assert (mail["From"], mail["To"], mail["Subject"]) == ("The shop <shop@example.com>", ANN, "Order 1")
    assert mail["Message-ID"].endswith("@example.com>")
    text, html = mail.iter_parts()
    assert text.get_content().strip() == "<tea> & cup: 3.5 at 12:00, naïvely"
    assert html.get_content().strip() == "<b>&lt;tea&gt; &amp; cup</b>"


def test_rows_of_a_group_become_one_mail(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        sink = email(
            "{customer}",
            sender="shop@example.com",
            subject="{_count} orders",
            before="Thank you!",
            body="- {product}",
            after="Your shop",
            group_by="customer",
            smtp=mailbox.url,
        )
        write(sink, context, 0, order(1), order(2, BOB), order(3, product="cup"))
    assert {(mail["To"], mail["Subject"]) for mail in mailbox.mails} == {(ANN, "2 orders"), (BOB, "1 orders")}
    assert mailbox.texts()[0].splitlines() == ["Thank you!", "- tea", "- cup", "Your shop"]


def test_one_mail_can_contain_a_whole_batch_for_several_recipients(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        sink = email([ANN, BOB], body="{id}", group_by=[], smtp=mailbox.url, **SHOP)
        write(sink, context, 0, order(1), order(2))
    (mail,) = mailbox.mails
    assert (mail["To"], mail.get_content().split()) == (f"{ANN}, {BOB}", ["1", "2"])


def test_each_mail_is_sent_once_when_the_batch_is_repeated(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        for _ in range(2):
            write(sink, context, 0, order(1), order(2, BOB), order(1))
        write(sink, context, 1, order(1))
    assert len(mailbox.mails) == len(set(mailbox.ids)) == 4


def test_a_mail_that_failed_is_sent_again_with_the_same_id_and_the_others_are_not(
    context: SinkContext,
) -> None:
    with Mailbox(lambda mail: "451 later" if mail["Subject"] == "Order 2" else TAKEN) as mailbox:
        sink = email(ANN, body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(RowsRejected, match="451 later") as refused:
            write(sink, context, 0, order(1), order(2), order(3))
        assert (list(refused.value.rows), refused.value.retryable) == ([1], True)
        mailbox.behave = lambda mail: TAKEN
        write(sink, context, 0, order(3), order(2), order(1))
    assert sorted(mail["Subject"] for mail in mailbox.mails) == ["Order 1", "Order 2", "Order 3"]
    assert (len(mailbox.ids), len(set(mailbox.ids))) == (4, 3)


def test_a_rejected_recipient_is_not_retried(context: SinkContext) -> None:
    with Mailbox(admit=lambda address: "550 unknown" if address == BOB else TAKEN) as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(RowsRejected, match="550 unknown") as refused:
            write(sink, context, 0, order(1), order(2, BOB), order(3))
        assert (list(refused.value.rows), refused.value.retryable) == ([1], False)
        write(sink, context, 0, order(1), order(3))
    assert sorted(mail["Subject"] for mail in mailbox.mails) == ["Order 1", "Order 3"]


@pytest.mark.parametrize(
    "customer",
    [
        "nobody",
        "",
        "ann@example.com, eve@example.com",
        "ann@example.com\nBcc: eve@example.com",
        "<ann@example.com> eve@example.com",
        "@example.com",
        None,
    ],
)
def test_an_invalid_address_rejects_the_row(context: SinkContext, customer: str | None) -> None:
    with Mailbox() as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(RowsRejected, match=r"not an e-mail address|is null") as refused:
            write(sink, context, 0, order(1), order(2, customer))
        assert list(refused.value.rows) == [1]
    assert mailbox.ids == []


def test_a_line_break_in_a_subject_adds_no_header(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, sender="s@example.com", subject="{product}", body="x", smtp=mailbox.url)
        write(sink, context, 0, order(1, product="tea\r\nBcc: eve@example.com"))
    assert mailbox.mails[0]["Subject"] == "tea Bcc: eve@example.com"
    assert mailbox.mails[0]["Bcc"] is None


def test_a_row_that_does_not_fit_its_template_is_rejected_before_any_mail_is_sent(
    context: SinkContext,
) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, body="{product:d}", smtp=mailbox.url, **SHOP)
        with pytest.raises(RowsRejected, match="cannot be rendered"):
            write(sink, context, 0, order(1))
    assert mailbox.ids == []


def test_the_rate_limit_holds_across_restarts(context: SinkContext) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, body="{product}", rate_limit="2 per day", smtp=mailbox.url, **SHOP)
        write(sink, context, 0, order(1))
        for _ in range(2):
            with pytest.raises(TargetUnavailable, match=r"2 mails in 86400 s is reached.*is sent in \d+ s"):
                write(sink, context, 1, order(2), order(3), order(4))
        assert sorted(mail["Subject"] for mail in mailbox.mails) == ["Order 1", "Order 2"]
        free = replace(sink, rate=None)
        assert write(free, context, 1, order(2), order(3), order(4)) == 1
    assert len(mailbox.mails) == len(set(mailbox.ids)) == 4


def test_a_rate_limit_is_a_sliding_period() -> None:
    rate = parse_rate_limit("3 per 10 minutes", "rate_limit")
    assert rate == RateLimit(count=3, seconds=600.0)
    assert rate.wait_s([100.0, 200.0], 200.0) == 0
    assert rate.wait_s([0.0, 100.0, 200.0, 300.0], 310.0) == 390.0
    assert rate.wait_s([0.0, 100.0, 200.0, 300.0], 700.0) == 0
    for text in ("often", "0 per hour", "3 per moon", "3 per 0 s"):
        with pytest.raises(Misuse, match="rate_limit is"):
            parse_rate_limit(text, "rate_limit")


def test_an_unreachable_server_is_unavailable(context: SinkContext, closed_port: int) -> None:
    sink = email(ANN, body="x", smtp=f"smtp://127.0.0.1:{closed_port}", **SHOP)
    with pytest.raises(TargetUnavailable, match=r"email ann@example\.com: .*refused"):
        write(sink, context, 0, order(1))


def test_a_password_is_not_sent_to_a_server_without_authentication_and_not_printed(
    context: SinkContext,
) -> None:
    with Mailbox() as mailbox:
        url = mailbox.url.replace("smtp://", "smtp://shop:pa55@")
        sink = email(ANN, body="x", smtp=url, **SHOP)
        with pytest.raises(TargetUnavailable) as fault:
            write(sink, context, 0, order(1))
    assert "pa55" not in str(fault.value) + repr(sink)


def test_a_password_is_not_sent_unencrypted_to_another_machine(context: SinkContext) -> None:
    with Mailbox(host="127.0.0.2") as mailbox:  # not an address that we know to be this machine
        url = mailbox.url.replace("smtp://", "smtp://shop:pa55@")
        with pytest.raises(IncompatibleTarget, match="offers no encryption"):
            write(email(ANN, body="x", smtp=url, **SHOP), context, 0, order(1))
    assert mailbox.ids == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"to": "ann"}, "to='ann' is not an address"),
        ({"to": []}, "at least one address"),
        ({"to": ANN, "sender": "shop"}, "sender='shop' is not an address"),
        ({"to": ANN, "smtp": "mail.example.com"}, "is invalid"),
        ({"to": ANN, "subject": "{"}, "not a valid template"),
    ],
)
def test_an_invalid_declaration_is_rejected(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        email(**{"body": "x", **SHOP, **arguments})


def test_missing_columns_are_named(context: SinkContext) -> None:
    for sink in (email(ANN, body="{city}", **SHOP), email(ANN, body="x", group_by="city", **SHOP)):
        with pytest.raises(IncompatibleTarget, match="city"):
            sink.open(context)
