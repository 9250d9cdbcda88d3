"""E-mails: one for each row of a job, or for each group of rows, sent once.

A batch is a list of mails. Each mail has an id that depends on its content alone, and is recorded in
`SentMessages` as soon as the mail server has accepted it: a batch that is repeated sends only the mails that
are missing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from typing import TYPE_CHECKING, Any, Final

from headrace.durations import seconds_of
from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.rows import json_documents, json_of
from headrace.sinks.sent import Sent, identities
from headrace.sinks.sink import Refused, Unavailable, Unsuitable, check_columns
from headrace.sinks.smtp import MailServer, NotTaken, SmtpConnection
from headrace.sinks.template import Template, Unfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.sink import Place

_RATE: Final = re.compile(r"(\d+)\s*(?:per|/)\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many in so long a time, wherever that time begins."""

    count: int
    seconds: float

    def wait_s(self, times: Sequence[float], now_s: float) -> float:
        """How long the next one has to wait, given when the last ones were.

        >>> Rate(count=2, seconds=60.0).wait_s([100.0, 110.0], 130.0)
        30.0
        """
        if len(times) < self.count:
            return 0.0
        return max(0.0, times[-self.count] + self.seconds - now_s)


def read_rate(text: str, what: str) -> Rate:
    """The rate in a text; `what` names its place in the complaint.

    >>> read_rate("30 per hour", "at_most")
    Rate(count=30, seconds=3600.0)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise Misuse(f'{what} is {text!r}, which is no rate: write "30 per hour", or "5 per 10 minutes".')
    period = match[2] if match[2][0].isdigit() else f"1 {match[2]}"
    seconds = seconds_of(period, what)
    if not seconds:
        raise Misuse(f"{what} is {text!r}: the time is to be longer than nothing.")
    return Rate(count=int(match[1]), seconds=seconds)


COUNT: Final = "_count"
"""The word in templates for the number of rows in a mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What one mail is made of."""

    to: tuple[Address, ...]
    indexes: tuple[int, ...]
    """Its rows in the table."""
    content: str
    """What makes it this mail and no other: who gets it, and its rows in an order that does not depend on
    how they came."""
    subject: str
    text: str
    html: str | None

    def message(self, sender: Address, identity: str) -> EmailMessage:
        """The mail as it is sent."""
        message = EmailMessage(policy=SMTP)
        message["From"] = sender
        message["To"] = self.to
        message["Subject"] = self.subject
        message["Date"] = formatdate(usegmt=True)
        message["Message-ID"] = f"<{identity}@{sender.domain}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(self.text)
        if self.html is not None:
            message.add_alternative(self.html, subtype="html")
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Letterhead:
    """How mails are made of rows."""

    to: tuple[Template, ...]
    subject: Template
    body: Template
    before: Template
    after: Template
    html: Template | None
    group_by: tuple[str, ...] | None

    @property
    def templates(self) -> tuple[Template, ...]:
        """All of them."""
        others = (self.subject, self.body, self.before, self.after, self.html)
        return (*self.to, *(each for each in others if each is not None))

    def mails(self, rows: pa.Table) -> list[Mail]:
        """A mail for each row, or for each group; `Refused` for rows of which none can be made."""
        listed: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="lossy")
        groups: dict[tuple[Any, ...], list[int]] = {}
        refused = {}
        for index, row in enumerate(listed):
            try:
                group = index if self.group_by is None else json_of([row[name] for name in self.group_by])
                groups.setdefault((*map(str, self._recipients(row)), group), []).append(index)
                self._written([row])  # so that a row that cannot be written refuses no other of its group
            except Unfit as unfit:
                refused[index] = str(unfit)
        if refused:
            raise Refused(refused)
        documents = list(json_documents(rows))
        return [self._mail(indexes, listed, documents) for indexes in groups.values()]

    def _recipients(self, row: dict[str, Any]) -> tuple[Address, ...]:
        return tuple(_address(template, row) for template in self.to)

    def _mail(self, indexes: list[int], rows: Sequence[dict[str, Any]], documents: list[str]) -> Mail:
        to = self._recipients(rows[indexes[0]])
        subject, text, html = self._written([rows[index] for index in indexes])
        return Mail(
            to=to,
            indexes=tuple(indexes),
            content=json_of([[str(each) for each in to], sorted(documents[index] for index in indexes)]),
            subject=subject,
            text=text,
            html=html,
        )

    def _written(self, rows: list[dict[str, Any]]) -> tuple[str, str, str | None]:
        """The subject, the text, and the text as HTML."""
        first = {COUNT: len(rows), **rows[0]}
        parts = [self.body.text_of({COUNT: len(rows), **row}) for row in rows]
        around = [self.before.text_of(first), *parts, self.after.text_of(first)]
        html = None
        if self.html is not None:
            html = "\n".join(self.html.text_of({COUNT: len(rows), **row}, is_html=True) for row in rows)
        # A line break in a header would end it: what comes from a row is put on one line.
        subject = " ".join(self.subject.text_of(first).split())
        return subject, "\n".join(part for part in around if part), html


def read_address(text: str) -> Address | None:
    """The address in `shop@example.com` or `The shop <shop@example.com>`; None where there is not just one.

    >>> read_address("The shop <shop@example.com>").addr_spec
    'shop@example.com'
    """
    name, spec = parseaddr(text)
    try:
        address = Address(display_name=name, addr_spec=spec)
    except (ValueError, IndexError, HeaderParseError):
        return None
    is_whole = text.strip() in (spec, str(address)) or text.strip().endswith(f"<{spec}>")
    return address if is_whole and address.username and address.domain else None


def checked_address(text: str, what: str) -> Address:
    """The address that a program names."""
    address = read_address(text)
    if address is None:
        raise Misuse(f'email: {what}={text!r} is no address: write "shop@example.com".')
    return address


def _address(template: Template, row: dict[str, Any]) -> Address:
    text = template.text_of(row, complete=True)
    address = read_address(text)
    if address is None:
        raise Unfit(f"{text!r} is no address of a mailbox")
    return address


TRIES: Final = 8
USUAL_SERVER: Final = "smtp://127.0.0.1:25"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSink:
    """Rows as mails; made by `email(…)`."""

    letterhead: Letterhead
    sender: Address
    name: str
    rate: Rate | None = None
    smtp: str | None = field(default=None, repr=False)
    tries: int = TRIES

    def open(self, place: Place) -> EmailTarget:
        """Read what was sent before; the server hears of it with the first mail."""
        names = place.schema.names
        for template in self.letterhead.templates:
            template.check(names, beside=(COUNT,))
        check_columns(self.name, self.letterhead.group_by or (), names)
        server = MailServer.of(Settings.read().url("smtp", self.smtp) or USUAL_SERVER)
        if server is None:
            raise Unsuitable(
                f"{self.name}: the address in smtp=, HEADRACE_SMTP or headrace.toml is none of a mail "
                "server: write smtp://user:password@host:587, or smtps://… for one that is encrypted at once."
            )
        return EmailTarget(self, server, place)


def email(
    to: str | Sequence[str],
    *,
    subject: str,
    body: str,
    sender: str,
    html: str | None = None,
    group_by: str | Sequence[str] | None = None,
    before: str = "",
    after: str = "",
    at_most: str | None = None,
    smtp: str | None = None,
    tries: int = TRIES,
    name: str = "",
) -> EmailSink:
    """Where each of a job's rows is mailed to people: `into=email("{customer_email}", subject=…, body=…)`.

    All texts are templates with columns in braces. With `group_by`, the rows of a micro-batch that are equal
    there, and go to the same people, become one mail: `before`, the `body` of each row, and `after`, where
    `{_count}` is the number of rows; `group_by=[]` makes one mail of all. `html` says each row in HTML too.
    Mails beyond `at_most`, such as "30 per hour", wait, and the job waits with them.
    Without `smtp` the server is that of HEADRACE_SMTP in the environment or `url` under `[smtp]` in
    `headrace.toml`, or the one on this machine.

    >>> email("ops@example.com", subject="{product}", body="{amount}", sender="shop@example.com").name
    'email ops@example.com'
    """
    recipients = (to,) if isinstance(to, str) else tuple(to)
    templates = tuple(Template(each, "to") for each in recipients)
    for template in templates:
        if not template.columns:
            checked_address(template.text, "to")
    if not templates or tries < 1:
        raise Misuse("email: name at least one address in to=, and at least 1 in tries=.")
    if smtp is not None and MailServer.of(smtp) is None:
        raise Misuse(
            'email: the address in smtp= is none of a mail server: write "smtp://user:password@host".'
        )
    letterhead = Letterhead(
        to=templates,
        subject=Template(subject, "subject"),
        body=Template(body, "body"),
        before=Template(before, "before"),
        after=Template(after, "after"),
        html=None if html is None else Template(html, "html"),
        group_by=(group_by,) if isinstance(group_by, str) else None if group_by is None else tuple(group_by),
    )
    return EmailSink(
        letterhead=letterhead,
        sender=checked_address(sender, "sender"),
        name=f"email {name or ', '.join(recipients)}",
        rate=None if at_most is None else read_rate(at_most, "at_most"),
        smtp=smtp,
        tries=tries,
    )


class EmailTarget:
    """A mail server, and the journal of what it has taken."""

    def __init__(self, sink: EmailSink, server: MailServer, place: Place) -> None:
        self._sink = sink
        self._server = server
        self._place = place
        self._sent = Sent(place.folder, times=0 if sink.rate is None else sink.rate.count)

    def newest(self) -> int | None:
        """The newest batch of which all mails were sent."""
        return self._sent.newest

    def write(self, batch: int, rows: pa.Table) -> None:
        """Send the mails that were not sent yet."""
        if self._sent.newest is not None and self._sent.newest >= batch:
            return
        mails = self._sink.letterhead.mails(rows)
        sent = self._sent.ids(batch)
        ids = identities(self._place, batch, [mail.content for mail in mails], sent)
        waiting = {identity: mail for identity, mail in zip(ids, mails, strict=True) if identity not in sent}
        if waiting:
            self._send(batch, waiting)
        self._sent.finish(batch)

    def close(self) -> None:
        """Let go of the journal; the server was taken leave of after the last mail."""

    def _send(self, batch: int, mails: dict[str, Mail]) -> None:
        refused: dict[int, NotTaken] = {}
        self._check_rate()
        with SmtpConnection(self._sink.name, self._server) as connection:
            for identity, mail in mails.items():
                self._check_rate()
                try:
                    connection.send(mail.message(self._sink.sender, identity))
                except NotTaken as fault:
                    refused |= dict.fromkeys(mail.indexes, fault)
                else:
                    self._sent.add(batch, identity)
        for is_final in (True, False):
            rows = {index: str(fault) for index, fault in refused.items() if fault.final is is_final}
            if rows:
                raise Refused(rows, final=is_final)

    def _check_rate(self) -> None:
        rate = self._sink.rate
        wait_s = 0.0 if rate is None else rate.wait_s(self._sent.times, time.time())
        if rate is not None and wait_s:
            raise Unavailable(
                f"{self._sink.name}: {rate.count} mails in {rate.seconds:g} s are the most, and were sent; "
                f"the next one goes in {wait_s:.0f} s"
            )
