"""A connection to a mail server, and what its answers mean.

```text
smtp://user:password@mail.example.com:587    encrypted by STARTTLS where the server offers it
smtps://user:password@mail.example.com       encrypted from the first byte, port 465
```

A password is sent over an encrypted connection, or to this machine, and not otherwise.
"""

from __future__ import annotations

import smtplib
import ssl
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from headrace.errors import HeadraceError
from headrace.sinks.sink import Unavailable, Unsuitable

if TYPE_CHECKING:
    from email.message import EmailMessage

LOCAL: Final = ("127.0.0.1", "::1", "localhost")
TIMEOUT_S: Final = 60.0


class NotTaken(HeadraceError):
    """The server does not take this mail; `final` if it never will."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where mails are handed in."""

    host: str
    port: int
    encrypted: bool
    """From the first byte."""
    user: str | None = None
    password: str = field(default="", repr=False)

    @staticmethod
    def of(url: str) -> MailServer | None:
        """The server of an address; None where it is none of a mail server.

        >>> MailServer.of("smtp://127.0.0.1").port
        25
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return None
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
            return None
        usual = 465 if parts.scheme == "smtps" else 587 if parts.username else 25
        return MailServer(
            host=parts.hostname,
            port=port or usual,
            encrypted=parts.scheme == "smtps",
            user=None if parts.username is None else unquote(parts.username),
            password=unquote(parts.password or ""),
        )


class SmtpConnection:
    """An open connection, for one batch of mails."""

    def __init__(self, name: str, server: MailServer) -> None:
        self._name = name
        try:
            self._smtp = _connect(server)
            with ExitStack() as cleaning:
                cleaning.callback(self._smtp.close)
                self._log_in(server)
                cleaning.pop_all()
        except (OSError, smtplib.SMTPException) as fault:
            raise Unavailable(f"{name}: {server.host}:{server.port}: {_said(fault)}") from fault

    def send(self, message: EmailMessage) -> None:
        """Return when the server has taken the mail over; `NotTaken` when it has not, and says so.

        `Unavailable` when nothing can be sent now; the mail may have been taken over then.
        """
        try:
            self._smtp.send_message(message)
        except smtplib.SMTPRecipientsRefused as fault:
            codes = [code for code, _ in fault.recipients.values()]
            said = "; ".join(f"{code} {_text(text)}" for code, text in fault.recipients.values())
            raise NotTaken(said, final=all(code >= 500 for code in codes)) from fault
        except smtplib.SMTPDataError as fault:
            raise NotTaken(_said(fault), final=fault.smtp_code >= 500) from fault
        except smtplib.SMTPNotSupportedError as fault:
            raise NotTaken(str(fault), final=True) from fault
        except (OSError, smtplib.SMTPException) as fault:
            raise Unavailable(f"{self._name}: {_said(fault)}") from fault

    def close(self) -> None:
        """Take leave."""
        try:
            self._smtp.quit()
        except (OSError, smtplib.SMTPException):
            self._smtp.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_in(self, server: MailServer) -> None:
        self._smtp.ehlo_or_helo_if_needed()
        is_private = server.encrypted
        if not is_private and self._smtp.has_extn("starttls"):
            self._smtp.starttls(context=ssl.create_default_context())
            is_private = True
        if server.user is None:
            return
        if not is_private and server.host not in LOCAL:
            raise Unsuitable(
                f"{self._name}: {server.host} offers no encryption, and the password would be sent in the "
                "open: use an address that begins with smtps://, or one without a password."
            )
        self._smtp.login(server.user, server.password)


def _connect(server: MailServer) -> smtplib.SMTP:
    if server.encrypted:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)


def _said(fault: Exception) -> str:
    if isinstance(fault, smtplib.SMTPResponseException):
        return f"{fault.smtp_code} {_text(fault.smtp_error)}"
    return str(fault) or type(fault).__name__


def _text(said: bytes | str) -> str:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return " ".join(text.split())
