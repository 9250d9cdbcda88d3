"""The scenario `observability`: OpenTelemetry, the gateway, jobs, alerts, and a check of the results."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.broker.process import BrokerProcess
from headrace.client.bootstrap import client_config
from headrace.demo import print_results
from headrace.demo.mail_server import DemoMailServer
from headrace.demo.shop import DemoDisplay, Phase, make_topics, set_variables
from headrace.demo.telemetry import (
    BOUNDS_S,
    FAILING,
    MINUTES,
    NIGHT_MINUTES,
    SERVICES,
    SLOW,
    require_sdk,
    traffic,
)
from headrace.gateway.process import GatewayProcess
from headrace.sinks.webhook import BadSignature, verify
from headrace.streams.pipeline import load_app
from headrace.streams.runner import Runner, RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType


PIPELINE: Final = Path(__file__).parent / "observability.py"
VIEWS: Final = ("error_rate", "latency", "error_alerts", "latency_alerts")
WINDOW_MINUTES: Final = 5
ALERTS: Final = {("alert.error_alerts", FAILING[0]), ("alert.latency_alerts", SLOW[0])}
"""The type and the service of each alert that there must be."""
TIMEOUT_S: Final = 180.0
MIN_SECONDS: Final = 5.0


class AlertReceiver:
    """An HTTP server that stores the signed events that it receives."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe()
        self.events: dict[str, dict[str, Any]] = {}
        """Events by their ids."""
        self.repeated = 0
        """How many events arrived more than once."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address of the webhook."""
        return f"http://127.0.0.1:{self._server.server_port}/alerts"

    def store(self, headers: Mapping[str, str], body: bytes) -> int:
        """Store an event; returns the status of the response."""
        try:
            identity = verify(self.secret, headers, body)
        except BadSignature:
            return 401
        self.repeated += identity in self.events
        self.events.setdefault(identity, json.loads(body))
        return 204

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(receiver: AlertReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Receive an event."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.store(dict(self.headers), body))
            self.end_headers()

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Print nothing."""

    return Handler


class ExpectedMinute(NamedTuple):
    """What the row of a minute and service has to say: its requests, and the bucket of their percentile."""

    requests: int
    least_s: float
    most_s: float


class ExpectedResults:
    """The results that follow from the traffic, by the start of their window and service."""

    def __init__(self, start: datetime) -> None:
        self.rates: dict[tuple[datetime, str], tuple[int, int]] = {}
        """Logs and errors of five minutes."""
        self.minutes: dict[tuple[datetime, str], ExpectedMinute] = {}
        logs, errors = Counter[tuple[datetime, str]](), Counter[tuple[datetime, str]]()
        durations_s = defaultdict[tuple[datetime, str], list[float]](list)
        for minute in range(MINUTES):
            for request in traffic(minute):
                durations_s[start + timedelta(minutes=minute), request.service].append(request.duration_s)
                for back in range(WINDOW_MINUTES):
                    window = (start + timedelta(minutes=minute - back), request.service)
                    logs[window] += 1
                    errors[window] += request.failed
        self.rates = {window: (logs[window], errors[window]) for window in logs}
        self.minutes = {window: _expected(each) for window, each in durations_s.items()}


def _expected(durations_s: list[float]) -> ExpectedMinute:
    """The bucket with the 95th percentile."""
    value = sorted(durations_s)[-(-95 * len(durations_s) // 100) - 1]
    least_s, most_s = next(each for each in pairwise((0.0, *BOUNDS_S)) if value <= each[1])
    return ExpectedMinute(len(durations_s), least_s, most_s)


class ResultReader:
    """Reads the views as often as it is asked to; each has one partition."""

    def __init__(self, bootstrap: str) -> None:
        self.rows: dict[str, dict[tuple[datetime, str], dict[str, Any]]] = {name: {} for name in VIEWS}
        """Rows of each view, by the start of their window and service."""
        self.repeated = 0
        """How many results arrived more than once."""
        settings = {
            "group.id": "demo-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer(client_config(bootstrap, settings))
        self._consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in VIEWS])

    def read(self) -> None:
        """Read what has been committed since the last time."""
        while messages := self._consumer.consume(500, 0.05):
            for message in messages:
                if message.error() is None and message.value() is not None:
                    row = json.loads(message.value() or b"")
                    rows = self.rows[message.topic() or ""]
                    window = (datetime.fromisoformat(row["window_start"]), row["service"])
                    self.repeated += window in rows
                    rows[window] = row

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


class ObservabilityCheck:
    """Compares the results with those that are expected."""

    def __init__(
        self, expected: ExpectedResults, results: ResultReader, webhooks: AlertReceiver, mails: DemoMailServer
    ) -> None:
        self._expected, self.results, self.webhooks, self._mails = expected, results, webhooks, mails

    @property
    def is_complete(self) -> bool:
        """Whether as many results as expected have arrived."""
        return (
            self.results.rows["error_rate"].keys() >= self._expected.rates.keys()
            and self.results.rows["latency"].keys() >= self._expected.minutes.keys()
            and len(self.webhooks.events) >= len(ALERTS)
            and len(self._mails.mails) >= len(ALERTS)
        )

    def claims(self) -> dict[str, bool]:
        """Each claim, and whether it holds."""
        rates = {
            window: (row["logs"], row["errors"]) for window, row in self.results.rows["error_rate"].items()
        }
        alerts = [(event["type"], event["data"]["service"]) for event in self.webhooks.events.values()]
        subjects = [str(mail["Subject"]) for mail in self._mails.mails.values()]
        texts = [f"{e['data']['service']}: {e['data']['alert']}" for e in self.webhooks.events.values()]
        return {
            f"{len(self._expected.rates):,} error rates of five minutes are right": (
                rates == self._expected.rates
            ),
            f"{len(self._expected.minutes):,} minutes have all requests, and their percentile": (
                self._are_percentiles_right()
            ),
            "no result was emitted twice": self.results.repeated == 0,
            f"{len(ALERTS)} incidents, {len(alerts)} signed webhooks, each sent once": (
                sorted(alerts) == sorted(ALERTS) and self.webhooks.repeated == 0
            ),
            f"{len(ALERTS)} incidents, {len(subjects)} e-mails, each sent once": (
                sorted(subjects) == sorted(texts) and self._mails.repeated == 0
            ),
        }

    def _are_percentiles_right(self) -> bool:
        found = self.results.rows["latency"]
        return found.keys() == self._expected.minutes.keys() and all(
            found[window]["requests"] == each.requests and each.least_s <= found[window]["p95"] <= each.most_s
            for window, each in self._expected.minutes.items()
        )


class ObservabilityDisplay(DemoDisplay):
    """The live display of the scenario; it starts the sender when the jobs run."""

    def __init__(self, console: Console, check: ObservabilityCheck, sender: Sequence[str]) -> None:
        self._check = check
        self._command = sender
        self._sender: subprocess.Popen[bytes] | None = None
        super().__init__(console)

    @property
    def has_sent(self) -> bool:
        """Whether the gateway has stored everything that the SDK exported."""
        return self._sender is not None and self._sender.poll() == 0

    @property
    def dead(self) -> int:
        """How many records and rows are dead letters."""
        return sum(report.dead for report in self._reports)

    def close(self) -> None:
        """End the sender."""
        if self._sender is not None:
            with self._sender as process:
                process.kill()

    def _direct(self, passed_s: float) -> None:
        self._check.results.read()
        match self._phase:
            case Phase.WAITING:
                self._sender = subprocess.Popen(self._command, stdin=subprocess.PIPE)
                self.say(f"Three services send their logs and metrics: {MINUTES} minutes of requests.")
                self._enter(Phase.RUNNING)
            case Phase.RUNNING if self._sender is not None and self._sender.poll() is not None:
                self.say("Everything is sent; the jobs process the remaining records.")
                self._enter(Phase.DRAINING)
            case Phase.DRAINING if self._check.is_complete and not any(each.lag for each in self._reports):
                self._end(f"All results are there, {passed_s:.0f} s later.")
            case Phase.DRAINING if passed_s > TIMEOUT_S:
                self._end("Some results are missing.")

    def _picture(self) -> RenderableType:
        table = Table(title="newest results", title_justify="left")
        for heading in ("service", "errors in five minutes", "95th percentile"):
            table.add_column(heading, justify="left" if heading == "service" else "right")
        for service in SERVICES:
            rate, latency = (self._newest(view, service) for view in ("error_rate", "latency"))
            table.add_row(
                service,
                f"{100 * rate['rate']:.1f} %" if rate else "",
                f"{1000 * latency['p95']:,.0f} ms" if latency else "",
            )
        events = list(self._check.webhooks.events.values())
        alerts = (
            Text(f"! {each['data']['service']}: {each['data']['alert']}", style="red") for each in events
        )
        return Group(super()._picture(), table, *alerts)

    def _newest(self, view: str, service: str) -> dict[str, Any] | None:
        rows = [row for (_, name), row in self._check.results.rows[view].items() if name == service]
        return rows[-1] if rows else None


class ObservabilityDemo:
    """One run of the scenario."""

    def __init__(self, console: Console, seconds: float) -> None:
        require_sdk()
        self._console = console
        self._seconds = max(seconds, MIN_SECONDS)

    def run(self) -> bool:
        """Run the scenario. Returns whether all checks passed."""
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-demo-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            broker = stack.enter_context(BrokerProcess(folder / "broker", attached=True)).bootstrap
            webhooks, mails = stack.enter_context(AlertReceiver()), stack.enter_context(DemoMailServer())
            set_variables(
                stack,
                {
                    "ALERT_WEBHOOK": webhooks.url,
                    "ALERT_SECRET": webhooks.secret,
                    "HEADRACE_SMTP": f"smtp://{mails.address}",
                },
            )
            app = load_app(PIPELINE)
            make_topics(broker, app, ("otel.logs", "otel.metrics", *VIEWS))
            gateway = stack.enter_context(GatewayProcess("127.0.0.1:0", broker))
            state = folder / "state"
            console = stack.enter_context(
                GatewayProcess("127.0.0.1:0", broker, str(state), module="headrace.console")
            )
            self._say(f"The gateway receives OpenTelemetry data on {gateway.url}")
            self._say(f"Watch the views in the console: {console.url}/#/views. Spark starts …")
            start = _start()
            results = ResultReader(broker)
            stack.callback(results.close)
            check = ObservabilityCheck(ExpectedResults(start), results, webhooks, mails)
            sender = [sys.executable, "-m", "headrace.demo.telemetry", gateway.url]
            display = ObservabilityDisplay(
                self._console, check, [*sender, str(start.timestamp()), str(self._seconds)]
            )
            stack.callback(display.close)
            runner = Runner(RunOptions(app=app, broker=broker, state=state), display)
            display.stop = runner.stop
            code = runner.run()
            return self._check(check, display, code)

    def _check(self, check: ObservabilityCheck, display: ObservabilityDisplay, code: int) -> bool:
        if not display.is_over:
            self._say("It was stopped before its end: there are no results to check.")
            return code == 0
        check.results.read()
        claims = {
            "the gateway has stored everything that the SDK exported": display.has_sent,
            **check.claims(),
            "there are no dead letters, and no job gave up": display.dead == 0 and code == 0,
        }
        held = print_results(self._console, claims)
        self._say(
            "\nAll of it is one file: `headrace demo --scenario observability --pipeline`; "
            "docs/observability.md explains it."
        )
        return held

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _start() -> datetime:
    """The start of the simulated time, a whole minute: the simulation ends about now."""
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    return end - timedelta(minutes=MINUTES + NIGHT_MINUTES)
