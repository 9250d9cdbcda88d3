"""The mail server of the demo, spoken to by Python's own client."""

import smtplib
from email.message import EmailMessage

import pytest

from headrace.demo.mail_server import DemoMailServer


def send(mailbox: DemoMailServer, number: int, to: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Message-ID"] = "shop@shop.example", to, f"<o{number}@shop.example>"
    mail.set_content(".a line that begins with a dot")
    with smtplib.SMTP(mailbox.address) as server:
        server.send_message(mail)


def test_a_mail_that_comes_again_is_kept_once() -> None:
    with DemoMailServer() as mailbox:
        for number in (1, 2, 1):
            send(mailbox, number, "ann@shop.example")
        assert list(mailbox.mails) == ["o1@shop.example", "o2@shop.example"]
        assert mailbox.repeated == 1
        assert mailbox.mails["o1@shop.example"].get_content().startswith(".a line")


def test_an_address_that_nobody_has_is_refused() -> None:
    with DemoMailServer() as mailbox:
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            send(mailbox, 1, "nobody@shop.example")
        assert not mailbox.mails
