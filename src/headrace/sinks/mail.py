"""Rows as mails: who gets one, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.sinks.errors import Refused
from headrace.sinks.rows import json_documents, json_of
from headrace.sinks.template import Unfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.template import Template

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
