"""Posts rows to a webhook, several at once, and writes down which were taken."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from headrace.sinks.errors import Refused, Unavailable
from headrace.sinks.rows import json_documents, json_of
from headrace.sinks.sent import Sent, identities
from headrace.sinks.signature import ID, SIGNATURE, TIMESTAMP, sign
from headrace.sinks.template import Unfit, text_of
from headrace.sinks.webhook_answer import Answer, read_answer, read_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from headrace.sinks.sink import Place
    from headrace.sinks.webhook import WebhookSink

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
