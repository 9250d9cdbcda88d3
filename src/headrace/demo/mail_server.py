"""A small SMTP server that stores mails, for the demo.

Addresses of shop.example that begin with `nobody` are rejected with code 550; all others are accepted. A mail
whose Message-ID is known is stored once, as mail clients do.
"""

from __future__ import annotations

import socketserver
import threading
from email import message_from_bytes
from email.policy import default
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from email.message import EmailMessage

HOST: Final = "127.0.0.1"
REFUSED: Final = "nobody"


class DemoMailServer:
    """An SMTP server that stores mails in the order of arrival."""

    def __init__(self) -> None:
        self.mails: dict[str, EmailMessage] = {}
        """Mails by Message-ID."""
        self.repeated = 0
        """How many mails arrived more than once."""
        self._server = _Server((HOST, 0), _Session)
        self._server.mailbox = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="mailbox", daemon=True)

    @property
    def address(self) -> str:
        """Its address as host:port."""
        return f"{HOST}:{self._server.server_address[1]}"

    def keep(self, data: bytes) -> None:
        """Store a mail, unless its Message-ID is known."""
        mail = message_from_bytes(data, policy=default)
        number = str(mail["Message-ID"]).strip("<>")
        self.repeated += number in self.mails
        self.mails.setdefault(number, mail)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    mailbox: DemoMailServer


class _Session(socketserver.StreamRequestHandler):
    """One SMTP session."""

    server: _Server

    def handle(self) -> None:
        self._say("220 mailbox")
        while line := self.rfile.readline(1000):
            command = line.decode("ascii", "replace").strip().upper()
            if command == "QUIT":
                self._say("221 bye")
                return
            self._answer(command)

    def _answer(self, command: str) -> None:
        verb = command.partition(" ")[0]
        if verb == "DATA":
            self._say("354 start mail input")
            self.server.mailbox.keep(self._read_mail())
            self._say("250 kept")
        elif verb == "RCPT" and f"<{REFUSED.upper()}" in command:
            self._say("550 no such mailbox")
        elif verb in ("EHLO", "HELO", "MAIL", "RCPT", "RSET", "NOOP"):
            self._say("250 ok")
        else:
            self._say("502 not here")

    def _read_mail(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return b"".join(lines)

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())
