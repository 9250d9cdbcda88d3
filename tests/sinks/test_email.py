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
from headrace.sinks.email import EmailSink, Rate, email, read_rate
from headrace.sinks.sink import Place, Refused, Sink, Unavailable, Unsuitable
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
def place(tmp_path: Path) -> Place:
    return Place(job="shop.mails", generation=1, schema=SCHEMA, folder=LocalFolder(tmp_path), state=tmp_path)


def order(number: int, customer: str | None = ANN, product: str = "tea") -> dict[str, Any]:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return {"id": number, "customer": customer, "product": product, "price": Decimal("3.50"), "at": noon}


def write(sink: EmailSink, place: Place, batch: int, *orders: dict[str, Any]) -> int | None:
    return writing.write(sink, place, batch, pa.Table.from_pylist(list(orders), schema=SCHEMA))


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
        words = [text.split() for text in self._mailbox.texts()]
        return [{"product": product, "revenue": float(revenue)} for product, revenue in words]


def test_a_row_becomes_a_mail(place: Place) -> None:
    with Mailbox() as mailbox:
        body = "{product}: {price:.1f} at {at:%H:%M}, naïvely"
        sink = email("{customer}", body=body, html="<b>{product}</b>", smtp=mailbox.url, **SHOP)
        assert write(sink, place, 0, order(1, product="<tea> & cup")) == 0
    (mail,) = mailbox.mails
    assert (mail["From"], mail["To"], mail["Subject"]) == ("The shop <shop@example.com>", ANN, "Order 1")
    assert mail["Message-ID"].endswith("@example.com>")
    text, html = mail.iter_parts()
    assert text.get_content().strip() == "<tea> & cup: 3.5 at 12:00, naïvely"
    assert html.get_content().strip() == "<b>&lt;tea&gt; &amp; cup</b>"


def test_rows_of_a_group_become_one_mail(place: Place) -> None:
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
        write(sink, place, 0, order(1), order(2, BOB), order(3, product="cup"))
    assert {(mail["To"], mail["Subject"]) for mail in mailbox.mails} == {(ANN, "2 orders"), (BOB, "1 orders")}
    assert mailbox.texts()[0].splitlines() == ["Thank you!", "- tea", "- cup", "Your shop"]


def test_one_mail_can_say_a_whole_batch_to_several_people(place: Place) -> None:
    with Mailbox() as mailbox:
        sink = email([ANN, BOB], body="{id}", group_by=[], smtp=mailbox.url, **SHOP)
        write(sink, place, 0, order(1), order(2))
    (mail,) = mailbox.mails
    assert (mail["To"], mail.get_content().split()) == (f"{ANN}, {BOB}", ["1", "2"])


def test_each_mail_is_sent_once_however_often_the_batch_comes(place: Place) -> None:
    with Mailbox() as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        for _ in range(2):
            write(sink, place, 0, order(1), order(2, BOB), order(1))
        write(sink, place, 1, order(1))
    assert len(mailbox.mails) == len(set(mailbox.ids)) == 4


def test_a_mail_that_failed_is_sent_again_with_the_same_id_and_the_others_are_not(place: Place) -> None:
    with Mailbox(lambda mail: "451 later" if mail["Subject"] == "Order 2" else TAKEN) as mailbox:
        sink = email(ANN, body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(Refused, match="451 later") as refused:
            write(sink, place, 0, order(1), order(2), order(3))
        assert (list(refused.value.rows), refused.value.final) == ([1], False)
        mailbox.behave = lambda mail: TAKEN
        write(sink, place, 0, order(3), order(2), order(1))
    assert sorted(mail["Subject"] for mail in mailbox.mails) == ["Order 1", "Order 2", "Order 3"]
    assert (len(mailbox.ids), len(set(mailbox.ids))) == (4, 3)


def test_a_recipient_that_is_refused_is_refused_for_good(place: Place) -> None:
    with Mailbox(admit=lambda address: "550 unknown" if address == BOB else TAKEN) as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(Refused, match="550 unknown") as refused:
            write(sink, place, 0, order(1), order(2, BOB), order(3))
        assert (list(refused.value.rows), refused.value.final) == ([1], True)
        write(sink, place, 0, order(1), order(3))
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
def test_what_is_no_address_gets_no_mail(place: Place, customer: str | None) -> None:
    with Mailbox() as mailbox:
        sink = email("{customer}", body="{product}", smtp=mailbox.url, **SHOP)
        with pytest.raises(Refused, match=r"no address|is null") as refused:
            write(sink, place, 0, order(1), order(2, customer))
        assert list(refused.value.rows) == [1]
    assert mailbox.ids == []


def test_a_line_break_in_a_subject_adds_no_header(place: Place) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, sender="s@example.com", subject="{product}", body="x", smtp=mailbox.url)
        write(sink, place, 0, order(1, product="tea\r\nBcc: eve@example.com"))
    assert mailbox.mails[0]["Subject"] == "tea Bcc: eve@example.com"
    assert mailbox.mails[0]["Bcc"] is None


def test_a_row_that_its_template_does_not_fit_is_refused_before_any_is_sent(place: Place) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, body="{product:d}", smtp=mailbox.url, **SHOP)
        with pytest.raises(Refused, match="fits no such row"):
            write(sink, place, 0, order(1))
    assert mailbox.ids == []


def test_more_than_at_most_waits_over_restarts(place: Place) -> None:
    with Mailbox() as mailbox:
        sink = email(ANN, body="{product}", at_most="2 per day", smtp=mailbox.url, **SHOP)
        write(sink, place, 0, order(1))
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"2 mails in 86400 s are the most.*goes in \d+ s"):
                write(sink, place, 1, order(2), order(3), order(4))
        assert sorted(mail["Subject"] for mail in mailbox.mails) == ["Order 1", "Order 2"]
        free = replace(sink, rate=None)
        assert write(free, place, 1, order(2), order(3), order(4)) == 1
    assert len(mailbox.mails) == len(set(mailbox.ids)) == 4


def test_a_rate_looks_back_from_now() -> None:
    rate = read_rate("3 per 10 minutes", "at_most")
    assert rate == Rate(count=3, seconds=600.0)
    assert rate.wait_s([100.0, 200.0], 200.0) == 0
    assert rate.wait_s([0.0, 100.0, 200.0, 300.0], 310.0) == 390.0
    assert rate.wait_s([0.0, 100.0, 200.0, 300.0], 700.0) == 0
    for text in ("often", "0 per hour", "3 per moon", "3 per 0 s"):
        with pytest.raises(Misuse, match="at_most is"):
            read_rate(text, "at_most")


def test_a_server_that_is_away_is_waited_for(place: Place, closed_port: int) -> None:
    sink = email(ANN, body="x", smtp=f"smtp://127.0.0.1:{closed_port}", **SHOP)
    with pytest.raises(Unavailable, match=r"email ann@example\.com: .*refused"):
        write(sink, place, 0, order(1))


def test_a_password_is_not_given_to_a_server_that_wants_none_and_not_printed(place: Place) -> None:
    with Mailbox() as mailbox:
        url = mailbox.url.replace("smtp://", "smtp://shop:pa55@")
        sink = email(ANN, body="x", smtp=url, **SHOP)
        with pytest.raises(Unavailable) as fault:
            write(sink, place, 0, order(1))
    assert "pa55" not in str(fault.value) + repr(sink)


def test_a_password_is_not_sent_in_the_open_to_another_machine(place: Place) -> None:
    with Mailbox(host="127.0.0.2") as mailbox:  # not an address that we know to be this machine
        url = mailbox.url.replace("smtp://", "smtp://shop:pa55@")
        with pytest.raises(Unsuitable, match="offers no encryption"):
            write(email(ANN, body="x", smtp=url, **SHOP), place, 0, order(1))
    assert mailbox.ids == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"to": "ann"}, "to='ann' is no address"),
        ({"to": []}, "at least one address"),
        ({"to": ANN, "sender": "shop"}, "sender='shop' is no address"),
        ({"to": ANN, "smtp": "mail.example.com"}, "none of a mail server"),
        ({"to": ANN, "subject": "{"}, "no template"),
    ],
)
def test_what_is_declared_wrongly_is_refused_at_once(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        email(**{"body": "x", **SHOP, **arguments})


def test_columns_that_rows_lack_are_named(place: Place) -> None:
    for sink in (email(ANN, body="{city}", **SHOP), email(ANN, body="x", group_by="city", **SHOP)):
        with pytest.raises(Unsuitable, match="city"):
            sink.open(place)
