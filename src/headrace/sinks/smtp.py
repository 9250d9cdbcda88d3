"""A connection to a mail server, and the meaning of its replies.

```text
smtp://user:password@mail.example.com:587    STARTTLS if the server offers it
smtps://user:password@mail.example.com       implicit TLS, port 465
```

A password is sent only over an encrypted connection, or to this machine.
"""

from __future__ import annotations

import smtplib
import ssl
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from headrace.errors import HeadraceError
from headrace.sinks.sink import IncompatibleTarget, TargetUnavailable

if TYPE_CHECKING:
    from email.message import EmailMessage

LOCAL: Final = ("127.0.0.1", "::1", "localhost")
TIMEOUT_S: Final = 60.0


class MailRejected(HeadraceError):
    """The server rejects the mail; `retryable` if a later attempt may succeed."""

    def __init__(self, reason: str, *, retryable: bool) -> None:
        super().__init__(reason)
        self.retryable = retryable


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServer:
    """The address of a mail server."""

    host: str
    port: int
    encrypted: bool
    """Whether the connection uses implicit TLS."""
    user: str | None = None
    password: str = field(default="", repr=False)

    @staticmethod
    def of(url: str) -> SmtpServer | None:
        """The server of a URL; None if the URL is invalid.

        >>> SmtpServer.of("smtp://127.0.0.1").port
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
        return SmtpServer(
            host=parts.hostname,
            port=port or usual,
            encrypted=parts.scheme == "smtps",
            user=None if parts.username is None else unquote(parts.username),
            password=unquote(parts.password or ""),
        )


class SmtpConnection:
    """An open connection for one batch of mails."""

    def __init__(self, name: str, server: SmtpServer) -> None:
        self._name = name
        try:
            self._smtp = _connect(server)
            with ExitStack() as cleaning:
                cleaning.callback(self._smtp.close)
                self._log_in(server)
                cleaning.pop_all()
        except (OSError, smtplib.SMTPException) as fault:
            raise TargetUnavailable(
                f"{name}: {server.host}:{server.port}: {_server_message(fault)}"
            ) from fault

    def send(self, message: EmailMessage) -> None:
        """Send a mail; raises `MailRejected` if the server rejects it.

        Raises `TargetUnavailable` if the connection fails; then the mail may have been accepted.
        """
        try:
            self._smtp.send_message(message)
        except smtplib.SMTPRecipientsRefused as fault:
            codes = [code for code, _ in fault.recipients.values()]
            reply = "; ".join(f"{code} {_text(text)}" for code, text in fault.recipients.values())
            raise MailRejected(reply, retryable=any(code < 500 for code in codes)) from fault
        except smtplib.SMTPDataError as fault:
            raise MailRejected(_server_message(fault), retryable=fault.smtp_code < 500) from fault
        except smtplib.SMTPNotSupportedError as fault:
            raise MailRejected(str(fault), retryable=False) from fault
        except (OSError, smtplib.SMTPException) as fault:
            raise TargetUnavailable(f"{self._name}: {_server_message(fault)}") from fault

    def close(self) -> None:
        """Close the connection."""
        try:
            self._smtp.quit()
        except (OSError, smtplib.SMTPException):
            self._smtp.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_in(self, server: SmtpServer) -> None:
        self._smtp.ehlo_or_helo_if_needed()
        is_private = server.encrypted
        if not is_private and self._smtp.has_extn("starttls"):
            self._smtp.starttls(context=ssl.create_default_context())
            is_private = True
        if server.user is None:
            return
        if not is_private and server.host not in LOCAL:
            raise IncompatibleTarget(
                f"{self._name}: {server.host} offers no encryption, and the password would be sent in "
                "plain text: use smtps://, or a URL without a password."
            )
        self._smtp.login(server.user, server.password)


def _connect(server: SmtpServer) -> smtplib.SMTP:
    if server.encrypted:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
    return smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)


def _server_message(fault: Exception) -> str:
    if isinstance(fault, smtplib.SMTPResponseException):
        return f"{fault.smtp_code} {_text(fault.smtp_error)}"
    return str(fault) or type(fault).__name__


def _text(reply: bytes | str) -> str:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return " ".join(text.split())
