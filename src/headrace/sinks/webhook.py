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
from urllib.parse import urlsplit

import pyarrow as pa
from urllib3 import PoolManager, Timeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
)

from headrace.durations import seconds_of
from headrace.errors import HeadraceError, Misuse
from headrace.sinks.rows import json_documents, json_of, text_of
from headrace.sinks.sent import Sent, identities
from headrace.sinks.sink import Refused, Unavailable, Unsuitable, check_columns
from headrace.sinks.template import Template, Unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from urllib3 import BaseHTTPResponse

    from headrace.durations import Duration
    from headrace.sinks.sink import Place

TRIES: Final = 8
AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSink:
    """Rows to a receiver of CloudEvents; made by `webhook(…)`."""

    url: str = field(repr=False)
    """Addresses of webhooks are often secrets themselves."""
    name: str
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    type: str = ""
    subject: Template | None = None
    time: str = ""
    order_by: tuple[str, ...] = ()
    at_once: int = AT_ONCE
    timeout_s: float = 30.0
    tries: int = TRIES

    def open(self, place: Place) -> WebhookTarget:
        """Read what was sent before; the receiver hears of it with the first row."""
        names = place.schema.names
        if self.subject is not None:
            self.subject.check(names)
        check_columns(self.name, filter(None, (*self.order_by, self.time)), names)
        if self.time and not pa.types.is_timestamp(place.schema.field(self.time).type):
            raise Unsuitable(f"{self.name}: time={self.time!r} is no column of timestamps: name one.")
        return WebhookTarget(self, place)


def webhook(
    url: str,
    *,
    secret: str | None = None,
    headers: Mapping[str, str] | None = None,
    type: str = "",  # noqa: A002  the word of CloudEvents
    subject: str = "",
    time: str = "",
    order_by: str | Sequence[str] = (),
    at_once: int = AT_ONCE,
    timeout: Duration = "30 seconds",
    tries: int = TRIES,
    name: str = "",
) -> WebhookSink:
    """Where each of a job's rows is posted as a CloudEvent: `into=webhook("https://…", secret=…)`.

    With a `secret`, messages are signed as Standard Webhooks says. `type` is the event's type (the job's
    name, unless one is given), `subject` a template, `time` the column with the event's time. Up to `at_once`
    messages are under way; those with the same `order_by` one after the other. A row that the receiver does
    not take in so many `tries` goes to the job's dead letters.

    >>> webhook("https://hooks.example.com/T0/secret").name
    'webhook hooks.example.com'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misuse('webhook: the address is none: write webhook("https://host/path").')
    if at_once < 1 or tries < 1:
        raise Misuse("webhook: at_once and tries are at least 1.")
    return WebhookSink(
        url=url,
        name=f"webhook {name or parts.hostname}",
        secret=secret,
        headers=dict(headers or {}),
        type=type,
        subject=Template(subject, "subject") if subject else None,
        time=time,
        order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
        at_once=at_once,
        timeout_s=seconds_of(timeout, "timeout"),
        tries=tries,
    )


ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
TOLERANCE_S: Final = 300


class BadSignature(HeadraceError):
    """A message that did not come from who knows the secret, or that was sent long ago."""


def sign(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """The signature of a message.

    >>> sign("secret", "1", 1767225600, b"{}")
    'v1,1TfhAOIbc37r4osrJgCnnTGAjPyTcZ0HSz/khBmWC1I='
    """
    key = b64decode(secret.removeprefix(PREFIX)) if secret.startswith(PREFIX) else secret.encode()
    content = b"%b.%d.%b" % (identity.encode(), timestamp, body)
    return "v1," + b64encode(hmac.digest(key, content, "sha256")).decode()


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_s: float = TOLERANCE_S) -> str:
    """The id of a message that is genuine, and not older than the tolerance; `BadSignature` otherwise.

    Whoever remembers the ids does not take a message twice.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        identity, timestamp, signatures = given[ID], int(given[TIMESTAMP]), given[SIGNATURE].split()
    except (KeyError, ValueError):
        raise BadSignature(f"the message has no {ID}, {TIMESTAMP} and {SIGNATURE}.") from None
    if abs(time.time() - timestamp) > tolerance_s:
        raise BadSignature(f"the message was signed more than {tolerance_s:g} s ago, or by another clock.")
    expected = sign(secret, identity, timestamp, body)
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise BadSignature("the signature does not fit the message: it was made with another secret.")
    return identity


AWAY: Final = frozenset({429, 502, 503, 504})
FAILED: Final = frozenset({408, 409, 425})
LONGEST_REASON: Final = 200


class Answer(NamedTuple):
    """What became of an event."""

    kind: Literal["taken", "refused", "failed", "away"]
    reason: str = ""
    wait_s: float = 0.0


def read_answer(response: BaseHTTPResponse) -> Answer:
    """What the receiver said."""
    text = _text(response)
    if response.status < 300:
        return Answer("taken")
    reason = f"it answered {response.status}" + (f": {text}" if text else "")
    if response.status in AWAY:
        return Answer("away", reason, _retry_after_s(response.headers.get("Retry-After", "")))
    if response.status in FAILED or response.status >= 500:
        return Answer("failed", reason)
    return Answer("refused", reason)


def read_fault(fault: HTTPError) -> Answer:
    """What it means that there was no answer."""
    match fault:
        case NewConnectionError() | ConnectTimeoutError():
            return Answer("away", f"no connection: {_last_words(fault)}")
        case ReadTimeoutError():
            return Answer("failed", "no answer in time")
        case ProtocolError():
            return Answer("failed", f"the connection was cut: {_last_words(fault)}")
        case _:  # certificates, addresses
            return Answer("away", _last_words(fault))


def _text(response: BaseHTTPResponse) -> str:
    """The beginning of what the receiver says; a connection with more to say is not used again."""
    try:
        said = response.read(LONGEST_REASON)
        if len(said) < LONGEST_REASON:
            response.release_conn()
        else:
            response.close()
    except HTTPError:  # its status is what counts
        response.close()
        return ""
    return " ".join(said.decode(errors="replace").split())


def _retry_after_s(text: str) -> float:
    """The seconds that a receiver asks to wait: a number, or a date."""
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else 0.0


def _last_words(fault: Exception) -> str:
    """What went wrong, without the objects that urllib3 names before it."""
    return str(fault).rpartition(": ")[2].rstrip(")'") or type(fault).__name__


CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An event on its way."""

    index: int
    """In the table."""
    identity: str
    body: bytes


class WebhookTarget:
    """A receiver of events, and the journal of what it has taken."""

    def __init__(self, sink: WebhookSink, place: Place) -> None:
        self._sink = sink
        self._place = place
        self._sent = Sent(place.folder)
        timeout = Timeout(total=sink.timeout_s)
        self._http = PoolManager(maxsize=sink.at_once, block=True, retries=False, timeout=timeout)

    def newest(self) -> int | None:
        """The newest batch of which the receiver has all rows."""
        return self._sent.newest

    def write(self, batch: int, rows: pa.Table) -> None:
        """Send the rows that were not sent yet."""
        if self._sent.newest is not None and self._sent.newest >= batch:
            return
        self._respect_hold()
        away = Event()  # whoever finds the receiver away tells the others
        lanes = self._lanes(batch, rows)
        answers: dict[int, Answer] = {}
        with ThreadPoolExecutor(max_workers=self._sink.at_once) as pool:
            for done in pool.map(lambda lane: self._send_lane(batch, lane, away), lanes):
                answers.update(done)
        self._conclude(answers)
        self._sent.finish(batch)

    def close(self) -> None:
        """Hang up."""
        self._http.clear()

    def _respect_hold(self) -> None:
        wait_s = self._sent.hold_until - time.time()
        if wait_s > 0:
            raise Unavailable(f"{self._sink.name}: it asked to be left alone for {wait_s:.0f} s more")

    def _lanes(self, batch: int, rows: pa.Table) -> list[list[Message]]:
        """The messages that were not sent yet; those of a lane are sent one after the other."""
        documents = list(json_documents(rows))
        sent = self._sent.ids(batch)
        ids = identities(self._place, batch, documents, sent)
        bodies = self._bodies(rows, documents, ids)
        lanes: dict[Any, list[Message]] = {}
        for index, lane in enumerate(self._lane_of_each(rows)):
            if ids[index] not in sent:
                message = Message(index=index, identity=ids[index], body=bodies[index])
                lanes.setdefault(lane, []).append(message)
        return list(lanes.values())

    def _lane_of_each(self, rows: pa.Table) -> Iterable[Any]:
        if not self._sink.order_by:
            return range(len(rows))
        return json_documents(rows.select(list(self._sink.order_by)))

    def _bodies(self, rows: pa.Table, documents: list[str], ids: list[str]) -> list[bytes]:
        bodies, refused = [], {}
        for index, row in enumerate(rows.to_pylist(maps_as_pydicts="lossy")):
            event = {
                "specversion": "1.0",
                "id": ids[index],
                "source": f"/{self._place.job}",
                "type": self._sink.type or self._place.job,
                "datacontenttype": "application/json",
            }
            try:
                event |= self._attributes(row)
            except Unfit as unfit:
                refused[index] = str(unfit)
            bodies.append(f'{json_of(event)[:-1]}, "data": {documents[index]}}}'.encode())
        if refused:
            raise Refused(refused)
        return bodies

    def _attributes(self, row: dict[str, Any]) -> dict[str, str]:
        """What a user wants to say besides: the event's subject and time."""
        attributes = {}
        if self._sink.subject is not None:
            attributes["subject"] = self._sink.subject.text_of(row)
        moment = row[self._sink.time] if self._sink.time else None
        if moment is not None:
            attributes["time"] = text_of(moment.replace(tzinfo=moment.tzinfo or UTC))
        return attributes

    def _send_lane(self, batch: int, lane: list[Message], away: Event) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        for message in lane:
            if away.is_set():
                break
            answer = answers[message.index] = self._post(message)
            if answer.kind == "taken":
                self._sent.add(batch, message.identity)
            elif answer.kind == "away":
                away.set()
            elif answer.kind == "failed":  # what comes behind it in the lane has to wait for it
                break
        return answers

    def _post(self, message: Message) -> Answer:
        timestamp = int(time.time())
        identity, body = message.identity, message.body
        headers = {"Content-Type": CONTENT_TYPE, "Idempotency-Key": identity, **self._sink.headers}
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
            return read_answer(response)
        except HTTPError as fault:
            return read_fault(fault)

    def _conclude(self, answers: dict[int, Answer]) -> None:
        """Raise what has to be raised, unless all was taken."""
        away = [answer for answer in answers.values() if answer.kind == "away"]
        if away:
            wait_s = max(answer.wait_s for answer in away)
            if wait_s:
                self._sent.hold(wait_s)
            raise Unavailable(f"{self._sink.name}: {away[0].reason}")
        for kind in ("refused", "failed"):
            rows = {index: answer.reason for index, answer in answers.items() if answer.kind == kind}
            if rows:
                raise Refused(rows, final=kind == "refused")
