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
from headrace.sinks.rows import json_documents, to_json
from headrace.sinks.sent import MessageIds, SentMessages
from headrace.sinks.sink import IncompatibleTarget, RowsRejected, TargetUnavailable, require_columns
from headrace.sinks.smtp import MailRejected, SmtpConnection, SmtpServer
from headrace.sinks.template import Template, TemplateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.sink import SinkContext
    from headrace.sinks.staging import StagedBatch

_RATE: Final = re.compile(r"(\d+)\s*(?:per|/)\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A maximum number of messages in any period of this length."""

    count: int
    seconds: float

    def wait_s(self, times: Sequence[float], now_s: float) -> float:
        """How long the next message must wait, from the times of the last ones.

        >>> RateLimit(count=2, seconds=60.0).wait_s([100.0, 110.0], 130.0)
        30.0
        """
        if len(times) < self.count:
            return 0.0
        return max(0.0, times[-self.count] + self.seconds - now_s)


def parse_rate_limit(text: str, what: str) -> RateLimit:
    """Parse a rate limit; `what` is the name of the option in the error message.

    >>> parse_rate_limit("30 per hour", "rate_limit")
    RateLimit(count=30, seconds=3600.0)
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise Misuse(f'{what} is {text!r}, which is not a rate: write "30 per hour", or "5 per 10 minutes".')
    period = match[2] if match[2][0].isdigit() else f"1 {match[2]}"
    seconds = seconds_of(period, what)
    if not seconds:
        raise Misuse(f"{what} is {text!r}: the period must be longer than zero.")
    return RateLimit(count=int(match[1]), seconds=seconds)


COUNT: Final = "_count"
"""The variable in templates for the number of rows in a mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """The content of one mail."""

    to: tuple[Address, ...]
    indexes: tuple[int, ...]
    """The indexes of its rows in the batch."""
    content: str
    """The identity of the mail: its recipients, and its rows in an order that does not depend on the
    batch."""
    subject: str
    text: str
    html: str | None

    def message(self, sender: Address, identity: str) -> EmailMessage:
        """The MIME message."""
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
class MailTemplate:
    """Creates mails from rows."""

    to: tuple[Template, ...]
    subject: Template
    body: Template
    before: Template
    after: Template
    html: Template | None
    group_by: tuple[str, ...] | None

    @property
    def templates(self) -> tuple[Template, ...]:
        """All templates."""
        others = (self.subject, self.body, self.before, self.after, self.html)
        return (*self.to, *(each for each in others if each is not None))

    def mails(self, rows: pa.Table) -> list[Mail]:
        """A mail for each row, or for each group; raises `RowsRejected` for rows that do not fit."""
        listed: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="lossy")
        groups: dict[tuple[Any, ...], list[int]] = {}
        rejected = {}
        for index, row in enumerate(listed):
            try:
                group = index if self.group_by is None else to_json([row[name] for name in self.group_by])
                groups.setdefault((*map(str, self._recipients(row)), group), []).append(index)
                self._render([row])  # so that an invalid row does not reject its whole group
            except TemplateError as invalid:
                rejected[index] = str(invalid)
        if rejected:
            raise RowsRejected(rejected)
        documents = list(json_documents(rows))
        return [self._mail(indexes, listed, documents) for indexes in groups.values()]

    def _recipients(self, row: dict[str, Any]) -> tuple[Address, ...]:
        return tuple(_address(template, row) for template in self.to)

    def _mail(self, indexes: list[int], rows: Sequence[dict[str, Any]], documents: list[str]) -> Mail:
        to = self._recipients(rows[indexes[0]])
        subject, text, html = self._render([rows[index] for index in indexes])
        return Mail(
            to=to,
            indexes=tuple(indexes),
            content=to_json([[str(each) for each in to], sorted(documents[index] for index in indexes)]),
            subject=subject,
            text=text,
            html=html,
        )

    def _render(self, rows: list[dict[str, Any]]) -> tuple[str, str, str | None]:
        """The subject, the plain text, and the HTML."""
        first = {COUNT: len(rows), **rows[0]}
        parts = [self.body.render({COUNT: len(rows), **row}) for row in rows]
        around = [self.before.render(first), *parts, self.after.render(first)]
        html = None
        if self.html is not None:
            html = "\n".join(self.html.render({COUNT: len(rows), **row}, is_html=True) for row in rows)
        # A line break would end the header: values are joined to one line.
        subject = " ".join(self.subject.render(first).split())
        return subject, "\n".join(part for part in around if part), html


def read_address(text: str) -> Address | None:
    """The address in `shop@example.com` or `The shop <shop@example.com>`; None if it is invalid.

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


def validate_address(text: str, what: str) -> Address:
    """Parse an address; raises `Misuse` if it is invalid."""
    address = read_address(text)
    if address is None:
        raise Misuse(f'email: {what}={text!r} is not an address: write "shop@example.com".')
    return address


def _address(template: Template, row: dict[str, Any]) -> Address:
    text = template.render(row, complete=True)
    address = read_address(text)
    if address is None:
        raise TemplateError(f"{text!r} is not an e-mail address")
    return address


DEFAULT_MAX_ATTEMPTS: Final = 8
DEFAULT_SERVER: Final = "smtp://127.0.0.1:25"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSink:
    """Rows as mails; created by `email(…)`."""

    mail_template: MailTemplate
    sender: Address
    name: str
    rate: RateLimit | None = None
    smtp: str | None = field(default=None, repr=False)
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def open(self, context: SinkContext) -> EmailWriter:
        """Read which mails were sent; connects with the first mail."""
        names = context.schema.names
        for template in self.mail_template.templates:
            template.check(names, extra=(COUNT,))
        require_columns(self.name, self.mail_template.group_by or (), names)
        server = SmtpServer.of(Settings.read().url("smtp", self.smtp) or DEFAULT_SERVER)
        if server is None:
            raise IncompatibleTarget(
                f"{self.name}: the URL in smtp=, HEADRACE_SMTP or headrace.toml is invalid: write "
                "smtp://user:password@host:587, or smtps://… for implicit TLS."
            )
        return EmailWriter(self, server, context)


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
    rate_limit: str | None = None,
    smtp: str | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    name: str = "",
) -> EmailSink:
    """E-mails as an output of a job: `into=email("{customer_email}", subject=…, body=…)`.

    All texts are templates with columns in braces. With `group_by`, rows of a micro-batch with equal values
    and the same recipients become one mail: `before`, the `body` of each row, and `after`; `{_count}` is the
    number of rows, and `group_by=[]` sends one mail for all rows. `html` adds an HTML version of each row.
    Mails beyond `rate_limit`, such as "30 per hour", wait, and the job waits with them. Without `smtp`, the
    server is that of HEADRACE_SMTP in the environment, `url` under `[smtp]` in `headrace.toml`, or
    127.0.0.1.

    >>> email("ops@example.com", subject="{product}", body="{amount}", sender="shop@example.com").name
    'email ops@example.com'
    """
    recipients = (to,) if isinstance(to, str) else tuple(to)
    templates = tuple(Template(each, "to") for each in recipients)
    for template in templates:
        if not template.columns:
            validate_address(template.text, "to")
    if not templates or max_attempts < 1:
        raise Misuse("email: pass at least one address in to=, and at least 1 in max_attempts=.")
    if smtp is not None and SmtpServer.of(smtp) is None:
        raise Misuse('email: the URL in smtp= is invalid: write "smtp://user:password@host".')
    mail_template = MailTemplate(
        to=templates,
        subject=Template(subject, "subject"),
        body=Template(body, "body"),
        before=Template(before, "before"),
        after=Template(after, "after"),
        html=None if html is None else Template(html, "html"),
        group_by=(group_by,) if isinstance(group_by, str) else None if group_by is None else tuple(group_by),
    )
    return EmailSink(
        mail_template=mail_template,
        sender=validate_address(sender, "sender"),
        name=f"email {name or ', '.join(recipients)}",
        rate=None if rate_limit is None else parse_rate_limit(rate_limit, "rate_limit"),
        smtp=smtp,
        max_attempts=max_attempts,
    )


class EmailWriter:
    """Sends mails, and records which were accepted."""

    def __init__(self, sink: EmailSink, server: SmtpServer, context: SinkContext) -> None:
        self._sink = sink
        self._server = server
        self._context = context
        self._sent = SentMessages(context.folder, times=0 if sink.rate is None else sink.rate.count)

    def last_batch(self) -> int | None:
        """The last batch that was sent completely."""
        return self._sent.newest

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Send the mails that were not sent before; rows that are grouped are in memory together."""
        if self._sent.newest is not None and self._sent.newest >= batch:
            return
        ids = MessageIds(self._context, batch, self._sent.ids(batch))
        for chunk in staged if self._sink.mail_template.group_by is None else [staged.whole]:
            try:
                self._send_rows(batch, chunk.read(), ids)
            except RowsRejected as fault:
                raise RowsRejected(chunk.by_ordinal(fault.rows), retryable=fault.retryable) from None
        self._sent.finish(batch)

    def _send_rows(self, batch: int, rows: pa.Table, message_ids: MessageIds) -> None:
        mails = self._sink.mail_template.mails(rows)
        sent = self._sent.ids(batch)
        ids = message_ids.of(mail.content for mail in mails)
        waiting = {identity: mail for identity, mail in zip(ids, mails, strict=True) if identity not in sent}
        if waiting:
            self._send(batch, waiting)

    def close(self) -> None:
        """Nothing to close: each batch has its own connection."""

    def _send(self, batch: int, mails: dict[str, Mail]) -> None:
        rejected: dict[int, MailRejected] = {}
        self._check_rate()
        with SmtpConnection(self._sink.name, self._server) as connection:
            for identity, mail in mails.items():
                self._check_rate()
                try:
                    connection.send(mail.message(self._sink.sender, identity))
                except MailRejected as fault:
                    rejected |= dict.fromkeys(mail.indexes, fault)
                else:
                    self._sent.add(batch, identity)
        for is_retryable in (False, True):
            rows = {index: str(fault) for index, fault in rejected.items() if fault.retryable is is_retryable}
            if rows:
                raise RowsRejected(rows, retryable=is_retryable)

    def _check_rate(self) -> None:
        rate = self._sink.rate
        wait_s = 0.0 if rate is None else rate.wait_s(self._sent.times, time.time())
        if rate is not None and wait_s:
            raise TargetUnavailable(
                f"{self._sink.name}: the rate limit of {rate.count} mails in {rate.seconds:g} s is reached; "
                f"the next mail is sent in {wait_s:.0f} s"
            )
