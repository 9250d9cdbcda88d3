"""An identity provider whose token endpoint gives one client tokens for Kafka's unsecured validator."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import trustme

from tools.secured_kafka import USER, unsigned_token

CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """A token endpoint that is up."""

    url: str
    ca: Path
    asked: list[str]
    """The forms that it was sent."""


@contextmanager
def token_endpoint(folder: Path, secret: str) -> Iterator[TokenEndpoint]:
    """A token endpoint by https that knows the client by this secret; its authority is in the folder."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    ca = folder / "identity-ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    credentials = base64.b64encode(f"{CLIENT}:{secret}".encode()).decode()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            known = self.headers["Authorization"] == f"Basic {credentials}"
            token, _ = unsigned_token(USER)
            answer: dict[str, Any] = (
                {"access_token": token, "expires_in": 300} if known else {"error": "invalid_client"}
            )
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield TokenEndpoint(url=f"https://localhost:{server.server_port}/token", ca=ca, asked=asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
