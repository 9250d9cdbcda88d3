"""The output to people: a mail for each row, or for each group of rows, sent once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.columns import check_columns
from headrace.sinks.errors import Refused, Unavailable, Unsuitable
from headrace.sinks.mail import COUNT, Letterhead, checked_address
from headrace.sinks.rate import Rate, read_rate
from headrace.sinks.sent import Sent, identities
from headrace.sinks.smtp import MailServer, NotTaken, SmtpConnection
from headrace.sinks.template import Template

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.headerregistry import Address

    import pyarrow as pa

    from headrace.sinks.mail import Mail
    from headrace.sinks.sink import Place

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
