"""Webhooks: each row of a job is posted as a CloudEvent, signed, once.

Messages are signed as Standard Webhooks specifies: `webhook-id`, `webhook-timestamp` (seconds since 1970) and
`webhook-signature`, which is `v1,` and the HMAC-SHA256 of id, timestamp and body, with dots between them, in
base64. `verify` checks it in Python; libraries exist for many languages.

What a response means for the row:

```text
2xx                                  accepted
429, 502, 503, 504, no connection    the receiver is unavailable: the batch waits, as long as Retry-After says
408, 409, 425, other 5xx,
timeout, connection lost             the row failed: it is retried, and rejected after the last attempt
anything else                        rejected
```
"""

from __future__ import annotations

import hmac
import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from urllib3 import PoolManager, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

from headrace.durations import duration_text, seconds_of
from headrace.errors import HeadraceError, Misuse
from headrace.sinks.rows import format_value, json_documents, to_json
from headrace.sinks.sent import MessageIds, SentMessages
from headrace.sinks.sink import IncompatibleTarget, RowsRejected, TargetUnavailable, require_columns
from headrace.sinks.template import Template, TemplateError
from headrace.tracing import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from urllib3 import BaseHTTPResponse

    from headrace.durations import Duration
    from headrace.sinks.sink import SinkContext
    from headrace.sinks.staging import StagedBatch

DEFAULT_MAX_ATTEMPTS: Final = 8
DEFAULT_MAX_IN_FLIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSink:
    """Rows as CloudEvents to a receiver; created by `webhook(…)`."""

    url: str = field(repr=False)
    """URLs of webhooks are often secrets."""
    name: str
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    type: str = ""
    subject: Template | None = None
    time: str = ""
    order_by: tuple[str, ...] = ()
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    timeout_s: float = 30.0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def open(self, context: SinkContext) -> WebhookWriter:
        """Read which messages were sent; connects with the first row."""
        names = context.schema.names
        if self.subject is not None:
            self.subject.check(names)
        require_columns(self.name, filter(None, (*self.order_by, self.time)), names)
        if self.time and not pa.types.is_timestamp(context.schema.field(self.time).type):
            raise IncompatibleTarget(f"{self.name}: time={self.time!r} is not a timestamp column.")
        return WebhookWriter(self, context)


def webhook(
    url: str,
    *,
    secret: str | None = None,
    headers: Mapping[str, str] | None = None,
    type: str = "",  # noqa: A002  the word of CloudEvents
    subject: str = "",
    time: str = "",
    order_by: str | Sequence[str] = (),
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    timeout: Duration = "30 seconds",
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    name: str = "",
) -> WebhookSink:
    """A webhook as an output of a job, with each row posted as a CloudEvent.

    With a `secret`, messages are signed as Standard Webhooks specifies. `type` is the event's type (by
    default the name of the job), `subject` a template, `time` the column with the event's time. Up to
    `max_in_flight` messages are sent concurrently; messages with the same `order_by` are sent in order. A row
    that the receiver does not accept in `max_attempts` attempts becomes a dead letter of the job.

    >>> webhook("https://hooks.example.com/T0/secret").name
    'webhook hooks.example.com'
    """
    host = _host_of(url)
    if host is None:
        raise Misuse('webhook: the URL is invalid: write webhook("https://host/path").')
    if max_in_flight < 1 or max_attempts < 1:
        raise Misuse("webhook: max_in_flight and max_attempts must be at least 1.")
    return WebhookSink(
        url=url,
        name=f"webhook {name or host}",
        secret=secret,
        headers=dict(headers or {}),
        type=type,
        subject=Template(subject, "subject") if subject else None,
        time=time,
        order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
        max_in_flight=max_in_flight,
        timeout_s=seconds_of(timeout, "timeout"),
        max_attempts=max_attempts,
    )


def _host_of(url: str) -> str | None:
    """The host of a URL; None if the URL is invalid. Errors of libraries would repeat the URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return None
    return parts.hostname if is_valid else None


MIN_SECRET_LENGTH: Final = 6
"""Shorter texts, such as the path `/hook`, are words of any answer."""


def secrets_of(sink: WebhookSink) -> tuple[str, ...]:
    """What a receiver may repeat in its answers and no message may show, the longest first.

    >>> secrets_of(webhook("https://example.com/T0/b7ad6b71", headers={"Authorization": "Bearer x9x9x9"}))
    ('https://example.com/T0/b7ad6b71', 'Bearer x9x9x9', '/T0/b7ad6b71', 'b7ad6b71', 'x9x9x9')
    """
    parts = urlsplit(sink.url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    values = [value for _, value in parse_qsl(parts.query)]
    words = [text for value in sink.headers.values() for text in (value, value.rpartition(" ")[2])]
    found = {sink.url, target, parts.path, parts.path.rpartition("/")[2], parts.password, sink.secret}
    texts = {text for text in (*found, *values, *words) if text and len(text) >= MIN_SECRET_LENGTH}
    return tuple(sorted(texts, key=lambda text: (-len(text), text)))


ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
TOLERANCE: Final = "5 minutes"


class BadSignature(HeadraceError):
    """The signature of a message is invalid, or too old."""


def sign(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """The signature of a message.

    >>> sign("secret", "1", 1767225600, b"{}")
    'v1,1TfhAOIbc37r4osrJgCnnTGAjPyTcZ0HSz/khBmWC1I='
    """
    key = b64decode(secret.removeprefix(PREFIX)) if secret.startswith(PREFIX) else secret.encode()
    content = b"%b.%d.%b" % (identity.encode(), timestamp, body)
    return "v1," + b64encode(hmac.digest(key, content, "sha256")).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: Duration = TOLERANCE) -> str:
    """The id of a message with a valid signature; raises `BadSignature` otherwise, or if it is too old.

    A receiver that stores the ids can discard duplicates.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        identity, timestamp, signatures = given[ID], int(given[TIMESTAMP]), given[SIGNATURE].split()
    except (KeyError, ValueError):
        raise BadSignature(f"the message has no {ID}, {TIMESTAMP} and {SIGNATURE}.") from None
    if abs(time.time() - timestamp) > seconds_of(tolerance, "tolerance"):
        raise BadSignature(
            f"the message was signed more than {duration_text(tolerance)} ago, or by a wrong clock."
        )
    expected = sign(secret, identity, timestamp, body)
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise BadSignature("the signature does not match the message: the secret is a different one.")
    return identity


UNAVAILABLE_STATUS: Final = frozenset({429, 502, 503, 504})
RETRYABLE_STATUS: Final = frozenset({408, 409, 425})
MAX_REASON_BYTES: Final = 4096
"""The start of an answer that is read."""
MAX_REASON_LENGTH: Final = 200
"""The start of it that is shown, without secrets."""


class DeliveryResult(NamedTuple):
    """The result of one request."""

    kind: Literal["accepted", "rejected", "failed", "unavailable"]
    reason: str = ""
    wait_s: float = 0.0


def read_response(response: BaseHTTPResponse, secrets: Sequence[str] = ()) -> DeliveryResult:
    """The result of a response, without secrets that it repeats."""
    text = _text(response, secrets)
    if response.status < 300:
        return DeliveryResult("accepted")
    reason = f"it responded {response.status}" + (f": {text}" if text else "")
    if response.status in UNAVAILABLE_STATUS:
        return DeliveryResult("unavailable", reason, _retry_after_s(response.headers.get("Retry-After", "")))
    if response.status in RETRYABLE_STATUS or response.status >= 500:
        return DeliveryResult("failed", reason)
    return DeliveryResult("rejected", reason)


def read_error(fault: HTTPError) -> DeliveryResult:
    """The result of a request without a response."""
    match fault:
        case NewConnectionError() | ConnectTimeoutError():
            return DeliveryResult("unavailable", f"no connection: {_short_message(fault)}")
        case ReadTimeoutError():
            return DeliveryResult("failed", "no response before the timeout")
        case ProtocolError():
            return DeliveryResult("failed", f"the connection was lost: {_short_message(fault)}")
        case _:  # certificates, addresses
            return DeliveryResult("unavailable", _short_message(fault))


def _text(response: BaseHTTPResponse, secrets: Sequence[str]) -> str:
    """The start of the response body; a connection with a longer body is not reused.

    Web frameworks answer a wrong address with the address: "Cannot POST /T0/secret".
    """
    try:
        body = response.read(MAX_REASON_BYTES)
        if len(body) < MAX_REASON_BYTES:
            response.release_conn()
        else:
            response.close()
    except HTTPError:  # only the status matters
        response.close()
        return ""
    text = body.decode(errors="replace")
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join(text.split())[:MAX_REASON_LENGTH]


def _retry_after_s(text: str) -> float:
    """The seconds in Retry-After: a number, or a date."""
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else 0.0


def _short_message(fault: Exception) -> str:
    """The message of an error, without the objects that urllib3 puts before it."""
    return str(fault).rpartition(": ")[2].rstrip(")'") or type(fault).__name__


CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookMessage:
    """An event to send."""

    index: int
    """The index of the row in the batch."""
    identity: str
    body: bytes
    traceparent: str | None
    """The span of the batch, if traces are exported."""


class WebhookWriter:
    """Posts rows, several concurrently, and records which were accepted."""

    def __init__(self, sink: WebhookSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._sent = SentMessages(context.folder)
        self._secrets = secrets_of(sink)
        timeout = Timeout(total=sink.timeout_s)
        self._http = PoolManager(maxsize=sink.max_in_flight, block=True, retries=False, timeout=timeout)

    def last_batch(self) -> int | None:
        """The last batch that was sent completely."""
        return self._sent.newest

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Send the rows that were not sent before, one chunk after the other."""
        if self._sent.newest is not None and self._sent.newest >= batch:
            return
        self._check_hold()
        ids = MessageIds(self._context, batch, self._sent.ids(batch))
        for chunk in staged:
            try:
                self._send(batch, chunk.read(), ids, staged.traceparent)
            except RowsRejected as fault:
                raise RowsRejected(chunk.by_ordinal(fault.rows), retryable=fault.retryable) from None
        self._sent.finish(batch)

    def close(self) -> None:
        """Close the connections."""
        self._http.clear()

    def _check_hold(self) -> None:
        wait_s = self._sent.hold_until - time.time()
        if wait_s > 0:
            raise TargetUnavailable(f"{self._sink.name}: it asked to wait {wait_s:.0f} s more (Retry-After)")

    def _send(self, batch: int, rows: pa.Table, ids: MessageIds, traceparent: str | None) -> None:
        is_unavailable = Event()  # set by the first request that finds the receiver unavailable
        lanes = self._lanes(batch, rows, ids, traceparent)
        results: dict[int, DeliveryResult] = {}
        with ThreadPoolExecutor(max_workers=self._sink.max_in_flight) as pool:
            for done in pool.map(lambda lane: self._send_lane(batch, lane, is_unavailable), lanes):
                results.update(done)
        self._raise_failures(results)

    def _lanes(
        self, batch: int, rows: pa.Table, message_ids: MessageIds, traceparent: str | None
    ) -> list[list[WebhookMessage]]:
        """The messages that were not sent before; messages of one lane are sent in order."""
        documents = list(json_documents(rows))
        sent = self._sent.ids(batch)
        ids = message_ids.of(documents)
        bodies = self._bodies(rows, documents, ids)
        lanes: dict[Any, list[WebhookMessage]] = {}
        for index, lane in enumerate(self._lane_keys(rows)):
            if ids[index] not in sent:
                message = WebhookMessage(
                    index=index, identity=ids[index], body=bodies[index], traceparent=traceparent
                )
                lanes.setdefault(lane, []).append(message)
        return list(lanes.values())

    def _lane_keys(self, rows: pa.Table) -> Iterable[Any]:
        if not self._sink.order_by:
            return range(len(rows))
        return json_documents(rows.select(list(self._sink.order_by)))

    def _bodies(self, rows: pa.Table, documents: list[str], ids: list[str]) -> list[bytes]:
        bodies, rejected = [], {}
        for index, row in enumerate(rows.to_pylist(maps_as_pydicts="lossy")):
            event = {
                "specversion": "1.0",
                "id": ids[index],
                "source": f"/{self._context.job}",
                "type": self._sink.type or self._context.job,
                "datacontenttype": "application/json",
            }
            try:
                event |= self._attributes(row)
            except TemplateError as invalid:
                rejected[index] = str(invalid)
            bodies.append(f'{to_json(event)[:-1]}, "data": {documents[index]}}}'.encode())
        if rejected:
            raise RowsRejected(rejected)
        return bodies

    def _attributes(self, row: dict[str, Any]) -> dict[str, str]:
        """The event's subject and time."""
        attributes = {}
        if self._sink.subject is not None:
            attributes["subject"] = self._sink.subject.render(row)
        moment = row[self._sink.time] if self._sink.time else None
        if moment is not None:
            attributes["time"] = format_value(moment.replace(tzinfo=moment.tzinfo or UTC))
        return attributes

    def _send_lane(
        self, batch: int, lane: list[WebhookMessage], is_unavailable: Event
    ) -> dict[int, DeliveryResult]:
        results: dict[int, DeliveryResult] = {}
        for message in lane:
            if is_unavailable.is_set():
                break
            result = results[message.index] = self._post(message)
            if result.kind == "accepted":
                self._sent.add(batch, message.identity)
            elif result.kind == "unavailable":
                is_unavailable.set()
            elif result.kind == "failed":  # later messages of the lane must wait for it
                break
        return results

    def _post(self, message: WebhookMessage) -> DeliveryResult:
        timestamp = int(time.time())
        identity, body = message.identity, message.body
        headers = {"Content-Type": CONTENT_TYPE, "Idempotency-Key": identity}
        if message.traceparent is not None:
            headers[HEADER] = message.traceparent
        headers |= self._sink.headers
        if self._sink.secret is not None:
            signature = sign(self._sink.secret, identity, timestamp, body)
            headers |= {ID: identity, TIMESTAMP: str(timestamp), SIGNATURE: signature}
        try:
            response = self._http.request(
                "POST",
                self._sink.url,
                body=body,
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            return read_response(response, self._secrets)
        except HTTPError as fault:
            return read_error(fault)

    def _raise_failures(self, results: dict[int, DeliveryResult]) -> None:
        """Raise an error unless all messages were accepted."""
        unavailable = [result for result in results.values() if result.kind == "unavailable"]
        if unavailable:
            wait_s = max(result.wait_s for result in unavailable)
            if wait_s:
                self._sent.hold(wait_s)
            raise TargetUnavailable(f"{self._sink.name}: {unavailable[0].reason}")
        for kind in ("rejected", "failed"):
            rows = {index: result.reason for index, result in results.items() if result.kind == kind}
            if rows:
                raise RowsRejected(rows, retryable=kind == "failed")
