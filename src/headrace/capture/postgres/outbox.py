"""The transactional outbox: rows of one table that name the topic to which they go.

    topic text · key text · value (or payload) text, json or bytea · headers json, an object

A service writes its own tables and a row here in one transaction, and the message is sent if and only if
that commits. Only inserts count: rows may be deleted at once, even in the transaction that wrote them.

A row that cannot be a message (invalid topic name, headers that are not a JSON object, too many bytes) goes
to the dead-letter topic `<capture>.<schema>.<table>.dead`, in the transaction of its neighbors.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.capture import source
from headrace.capture.postgres.pgoutput import Unchanged
from headrace.capture.postgres.replication import write_lsn
from headrace.capture.source import CaptureError

if TYPE_CHECKING:
    from headrace.capture.postgres.pgoutput import RelationMessage, TupleData
    from headrace.capture.postgres.relation import SourceTransaction
    from headrace.capture.source import ChangeWriter

BYTEA: Final = 17
TOPIC: Final = re.compile("[A-Za-z0-9._-]{1,249}")
VALUES: Final = ("value", "payload")
DEAD_LETTERS: Final = ".dead"
"""The suffix of the dead-letter topic."""


class InvalidRow(Exception):
    """A row of the outbox that cannot be a message; the message is the reason."""


class OutboxRow(NamedTuple):
    """The columns of a row that make a message."""

    topic: bytes | None
    key: bytes | None
    value: bytes | None
    headers: bytes | None

    @property
    def size_bytes(self) -> int:
        """The bytes of all columns."""
        return sum(len(column) for column in self if column is not None)

    def read_topic(self) -> str:
        """The topic; `InvalidRow` where Kafka does not allow its name."""
        topic = (self.topic or b"").decode(errors="replace")
        if not TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise InvalidRow(
                f"{topic!r} is not a valid topic name: use letters, digits, dots, dashes and underscores, "
                "249 at most"
            )
        return topic

    def read_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the message; `InvalidRow` where they are not a JSON object."""
        if self.headers is None:
            return []
        try:
            pairs = list(json.loads(self.headers).items())
        except (ValueError, AttributeError):
            raise InvalidRow(f"the headers are not a JSON object: {self.headers[:80]!r}") from None
        return [(name, None if value is None else _header(value)) for name, value in pairs]


class Outbox:
    """The outbox as a relation: inserts become messages; updates and deletes are ignored."""

    topic = ""

    def __init__(
        self, message: RelationMessage, *, topic: str, start_position: int, writer: ChangeWriter
    ) -> None:
        self.start_position = start_position
        self._dead_letters = f"{topic}{DEAD_LETTERS}"
        self._writer = writer
        self._name = f"{message.schema}.{message.table}"
        self._types = {column.name: column.type_oid for column in message.columns}
        self._places = {column.name: index for index, column in enumerate(message.columns)}
        self._value = next((name for name in VALUES if name in self._places), "")
        if "topic" not in self._places or not self._value:
            raise CaptureError(
                f"the outbox {self._name} has no columns `topic` and `value`: it needs these, and may have "
                "`key` and `headers`."
            )

    def snapshot(self, values: TupleData, lsn: int, time_ms: int) -> None:
        """Send a row that the snapshot found."""
        self._send(values, lsn, time_ms)

    def write_from_template(self, data: bytes, at: SourceTransaction) -> bool:  # noqa: ARG002
        """Always False: messages are not change events."""
        return False

    def insert(self, values: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Send a row."""
        self._send(values, lsn, at.time_ms)

    def update(self, old: TupleData | None, values: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Ignored: the message was sent by the insert."""

    def delete(self, old: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Ignored: the message was sent by the insert."""

    def truncate(self, lsn: int, at: SourceTransaction) -> None:
        """Ignored: the message was sent by the insert."""

    def _send(self, values: TupleData, lsn: int, time_ms: int) -> None:
        row = OutboxRow(*(self._field(values, name) for name in ("topic", "key", self._value, "headers")))
        try:
            if row.size_bytes > source.LARGEST_RECORD:
                raise InvalidRow(
                    f"the row has {row.size_bytes:,} bytes, and a record {source.LARGEST_RECORD:,} at most"
                )
            self._writer.send(row.read_topic(), row.key, row.value, time_ms, row.read_headers())
        except InvalidRow as invalid:
            self._send_dead_letter(row, str(invalid), lsn, time_ms)

    def _send_dead_letter(self, row: OutboxRow, reason: str, lsn: int, time_ms: int) -> None:
        """Write a row to the dead-letter topic; a row that is too large for a record without its columns."""
        if row.size_bytes > source.LARGEST_RECORD:
            row = OutboxRow(None, None, None, None)
        self._writer.open_topic(self._dead_letters, compacted=False)
        headers = {"reason": reason.encode(), "table": self._name.encode(), "lsn": write_lsn(lsn).encode()}
        headers |= {"outbox.topic": row.topic or b"", "outbox.headers": row.headers or b""}
        self._writer.send(self._dead_letters, row.key, row.value, time_ms, list(headers.items()))

    def _field(self, values: TupleData, name: str) -> bytes | None:
        value = values[self._places[name]] if name in self._places else None
        if isinstance(value, Unchanged) or value is None:
            return None
        return bytes.fromhex(value[2:].decode()) if self._types[name] == BYTEA else value


def _header(value: object) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()
