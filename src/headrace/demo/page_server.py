"""The web page of the demo: its files, its state as server-sent events, and the change feeds of its views."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.demo.checks import LAST
from headrace.demo.database import CUSTOMERS
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request

    from headrace.demo.checks import CheckMonitor, OutputTopicReader
    from headrace.demo.mail_server import DemoMailServer
    from headrace.demo.simulator import ShopClock, ShopSimulator
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
        self.console = ""
        """The address of the console."""
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
            "console": self.console,
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


EVERY_S: Final = 0.5
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def page_gateway(broker: str, live: Callable[[], Any], port: int = 0) -> GatewayThread:
    """An HTTP gateway in its own thread with the files of the page, and its state, which `live` returns."""
    routes = [Route(path, partial(_file, name, kind)) for path, (name, kind) in FILES.items()]
    routes.append(Route("/live", partial(_live, live)))
    return GatewayThread(GatewayOptions(broker=broker, port=port), routes)


async def _file(name: str, kind: str, _: Request) -> Response:
    body = files("headrace.demo").joinpath("page", name).read_bytes()
    return Response(body, media_type=kind, headers=HEADERS)


async def _live(live: Callable[[], Any], _: Request) -> Response:
    """Send the state twice a second, until the client disconnects."""

    async def states() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        while True:
            yield f"data: {json.dumps(live())}\n\n"
            await asyncio.sleep(EVERY_S)

    return StreamingResponse(states(), media_type="text/event-stream", headers=HEADERS)
