"""The web page of the demo: its files, its state as server-sent events, and the change feeds of its views."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.demo.checks import LAST
from headrace.demo.database import CUSTOMERS
from headrace.feeds.server import STREAM_HEAD, ChangeServer, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.demo.checks import CheckMonitor
    from headrace.demo.mail_server import DemoMailServer
    from headrace.demo.outputs import OutputTopicReader
    from headrace.demo.simulator import ShopClock, ShopSimulator
    from headrace.feeds.server import Request
    from headrace.streams.report import Report

SHOWN_MAILS: Final = 8


class PageState:
    """The state that the web page shows; the display sets messages and job reports."""

    def __init__(
        self,
        simulator: ShopSimulator,
        outputs: OutputTopicReader,
        watch: CheckMonitor,
        mailbox: DemoMailServer,
        clock: ShopClock,
    ) -> None:
        self.news = "Spark starts …"
        self.reports: Sequence[Report] = ()
        self._simulator = simulator
        self._outputs = outputs
        self._watch = watch
        self._mailbox = mailbox
        self._clock = clock

    def document(self) -> dict[str, Any]:
        """The state as a JSON document."""
        status = [row for key, row in list(self._outputs.status.items()) if key != LAST]
        paid = sum(bool(row.get("paid")) for row in status)
        mails = list(self._mailbox.mails.values())
        return {
            "clock": f"{self._clock.now():%H:%M}",
            "news": self.news,
            "customers": CUSTOMERS,
            "paid": paid,
            "unpaid": len(status) - paid,
            "waiting": max(len(self._simulator.orders) - len(status), 0),
            "late": len(self._outputs.late_clicks),
            "mails": len(mails),
            "dead": len(self._outputs.dead_mails),
            "newest_mails": [
                (str(mail["To"]).partition("@")[0], str(mail["Subject"]))
                for mail in islice(reversed(mails), SHOWN_MAILS)
            ],
            "rates": {topic: round(rate, 1) for topic, rate in self._watch.rates.items()},
            "results": [asdict(result) for result in self._watch.results],
            "jobs": [{"job": report.job, "batch_ms": report.batch_ms} for report in self.reports],
        }


HOST: Final = "127.0.0.1"
EVERY_S: Final = 0.5
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
POLICY: Final = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


@dataclass(slots=True)
class PageServer(ChangeServer):
    """Serves change feeds, the files of the page, and its state, which `live` returns."""

    live: Callable[[], Any] = dict

    async def _respond(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.path in FILES:
            await self._send(writer, _file(*FILES[request.path]))
        elif request.path == "/live":
            await self._send_state(writer)
        else:
            await ChangeServer._respond(self, request, reader, writer)

    async def _send_state(self, writer: asyncio.StreamWriter) -> None:
        """Send the state twice a second, until the client disconnects."""
        await self._send(writer, (STREAM_HEAD + "\r\nretry: 1000\n\n").encode())
        while True:
            await self._send(writer, f"data: {json.dumps(self.live())}\n\n".encode())
            await asyncio.sleep(EVERY_S)


class PageThread:
    """The server in its own thread, from `__enter__` to `__exit__`."""

    def __init__(self, broker: str, live: Callable[[], Any], port: int = 0) -> None:
        self.url = ""
        self._server = PageServer(ServerOptions(broker=broker), live=live)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._server.start(HOST, self._port))
        self.url = f"http://{HOST}:{port}/"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _file(name: str, kind: str) -> bytes:
    body = files("headrace.demo").joinpath("page", name).read_bytes()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
