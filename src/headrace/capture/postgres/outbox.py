"""The transactional outbox: rows of one table that say themselves to which topic they go.

    topic text · key text · value (or payload) text, json or bytea · headers json, an object

A service writes its own tables and a row here in one transaction, and the message is sent if and only if
that commits. Only inserts count: rows may be deleted at once, even in the transaction that wrote them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from headrace.capture.errors import CaptureError
from headrace.capture.postgres.pgoutput import Unchanged

if TYPE_CHECKING:
    from headrace.capture.postgres.pgoutput import RelationMessage, Tuple
    from headrace.capture.postgres.relation import Transaction
    from headrace.capture.source import Sink

BYTEA: Final = 17
TOPIC: Final = re.compile("[A-Za-z0-9._-]{1,249}")
VALUES: Final = ("value", "payload")


class Outbox:
    """The outbox as a relation: inserts become messages, and nothing else does anything."""

    topic = ""

    def __init__(self, message: RelationMessage, *, since: int, sink: Sink) -> None:
        self.since = since
        self._sink = sink
        self._name = f"{message.schema}.{message.table}"
        self._types = {column.name: column.type_oid for column in message.columns}
        self._places = {column.name: index for index, column in enumerate(message.columns)}
        self._value = next((name for name in VALUES if name in self._places), "")
        if "topic" not in self._places or not self._value:
            raise CaptureError(
                f"the outbox {self._name} has no columns `topic` and `value`: it needs these, and may have "
                "`key` and `headers`."
            )

    def snapshot(self, values: Tuple, lsn: int, time_ms: int) -> None:  # noqa: ARG002  as relations have it
        """Send a row that was there before."""
        self._send(values, time_ms)

    def write_known(self, data: bytes, at: Transaction) -> bool:  # noqa: ARG002
        """No: what is sent is not an event."""
        return False

    def insert(self, values: Tuple, lsn: int, at: Transaction) -> None:  # noqa: ARG002
        """Send a row."""
        self._send(values, at.time_ms)

    def update(self, old: Tuple | None, values: Tuple, lsn: int, at: Transaction) -> None:
        """Nothing: what is sent is sent."""

    def delete(self, old: Tuple, lsn: int, at: Transaction) -> None:
        """Nothing: rows are cleared away when they are sent."""

    def truncate(self, lsn: int, at: Transaction) -> None:
        """Nothing: rows are cleared away when they are sent."""

    def _send(self, values: Tuple, time_ms: int) -> None:
        topic = self._field(values, "topic")
        name = "" if topic is None else topic.decode()
        if not TOPIC.fullmatch(name) or name in (".", ".."):
            raise CaptureError(
                f"a row of the outbox {self._name} names the topic {name!r}, and a topic's name is letters, "
                "digits, dots, dashes and underscores, 249 at most. The replication slot is kept. To leave "
                "the row out, delete it, drop the capture (`headrace capture drop`), and start it again."
            )
        self._sink.send(
            name,
            self._field(values, "key"),
            self._field(values, self._value),
            time_ms,
            self._headers(values),
        )

    def _field(self, values: Tuple, name: str) -> bytes | None:
        value = values[self._places[name]] if name in self._places else None
        if isinstance(value, Unchanged) or value is None:
            return None
        return bytes.fromhex(value[2:].decode()) if self._types[name] == BYTEA else value

    def _headers(self, values: Tuple) -> list[tuple[str, bytes | None]]:
        written = self._field(values, "headers")
        if written is None:
            return []
        try:
            found = json.loads(written)
            pairs = list(found.items())
        except (ValueError, AttributeError) as fault:
            raise CaptureError(
                f"a row of the outbox {self._name} has headers that are no JSON object: {written[:80]!r}."
            ) from fault
        return [(name, None if value is None else _header(value)) for name, value in pairs]


def _header(value: object) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()
