"""A real mail server that keeps what it takes, and behaves as a test says."""

import socket
from collections.abc import Callable
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from types import TracebackType
from typing import Any, Self

from aiosmtpd.controller import Controller

TAKEN = "250 OK"


class Mailbox:
    """Takes mails on a free port; `behave` and `admit` give the answers to a mail and to a recipient.

    More arguments are those of aiosmtpd's server, such as `tls_context` and `authenticator`.
    """

    def __init__(
        self,
        behave: Callable[[EmailMessage], str] = lambda mail: TAKEN,
        admit: Callable[[str], str] = lambda recipient: TAKEN,
        host: str = "127.0.0.1",
        **server: Any,
    ) -> None:
        self.behave = behave
        self.admit = admit
        self.mails: list[EmailMessage] = []
        """Those that were taken."""
        self.ids: list[str] = []
        """Of all that came."""
        self._controller = _Controller(self, socket.create_server((host, 0)), server)

    @property
    def url(self) -> str:
        return f"smtp://{self._controller.hostname}:{self._controller.port}"

    def texts(self) -> list[str]:
        return sorted(mail.get_content().strip() for mail in self.mails)

    async def handle_RCPT(  # noqa: N802  aiosmtpd's name
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        answer = self.admit(address)
        if answer == TAKEN:
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.ids.append(mail["Message-ID"])
        answer = self.behave(mail)
        if answer == TAKEN:
            self.mails.append(mail)
        return answer

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._controller.stop()


class _Controller(Controller):
    """Serves on a socket that is bound already, so that no other process can take its port."""

    def __init__(self, handler: Mailbox, listener: socket.socket, server: dict[str, Any]) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(handler, hostname=host, port=port, enable_SMTPUTF8=True, **server)
        self._listener = listener

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._listener, ssl=self.ssl_context)
