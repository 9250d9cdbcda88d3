"""`headrace produce`: writes lines of standard input to a topic."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import Progress, RequestFailed, note, print_line
from headrace.cli.record_lines import ANY_PARTITION, Headers, MalformedLine, json_lines, plain_lines
from headrace.cli.session import connect
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError

    from headrace.cli.record_lines import InputRecord
    from headrace.cli.session import BrokerSession

POLL_EVERY: Final = 1000
SMALLEST_LIMIT_BYTES: Final = 1000
"""librdkafka takes no lower limit for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailure:
    """The lines whose records were not stored, and the first reason."""

    line: int
    last: int
    """The last line: records of one batch are rejected together."""
    reason: str


class RecordSender:
    """A producer for one topic. Unless `acks` is 0 or 1, it is idempotent and keeps the order of records."""

    def __init__(
        self, session: BrokerSession, topic: str, *, acks: str, compression: str, limit_bytes: int
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._topic = topic
        self._refused = KafkaException
        self._producer = Producer(self._config(session, acks, compression, limit_bytes))
        self._sent = 0
        self._failed = 0
        self.failure: SendFailure | None = None

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records, once `finish` has returned."""
        return self._sent - self._failed

    def send(self, line: int, record: InputRecord) -> None:
        """Send the record of a line; blocks while too many records are in flight."""
        self._sent += 1
        try:
            while not self._enqueue(line, record):
                self._producer.poll(0.1)
        except self._refused as fault:
            self._note(line, fault.args[0], None)
        if self._sent % POLL_EVERY == 0:
            self._producer.poll(0)

    def finish(self) -> None:
        """Wait until every record has been acknowledged or has failed."""
        # Short waits in a loop, so that Ctrl-C is handled.
        while self._producer.flush(0.5):
            pass

    def _enqueue(self, line: int, record: InputRecord) -> bool:
        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=record.headers,
                on_delivery=partial(self._note, line),
            )
        except BufferError:
            return False
        return True

    def _note(self, line: int, error: KafkaError | None, _: Any) -> None:
        """Count a failed record; librdkafka reports no others (`delivery.report.only.error`)."""
        self._failed += 1
        if error is None:
            return
        first = self.failure or SendFailure(line=line, last=line, reason=f"{error.str()} ({error.name()})")
        self.failure = SendFailure(
            line=min(line, first.line), last=max(line, first.last), reason=first.reason
        )

    @staticmethod
    def _config(session: BrokerSession, acks: str, compression: str, limit_bytes: int) -> dict[str, Any]:
        return session.client_config(
            acks=acks,
            compression_type=compression,
            enable_idempotence=acks == "all",
            # As the Java client and Headrace's own jobs choose, so that a key has one partition.
            partitioner="murmur2_random",
            delivery_report_only_error=True,
            message_timeout_ms=int(session.timeout_s * 1000),
            # Batches no larger than the topic takes, and a record that is too large is known by its line.
            message_max_bytes=max(limit_bytes, SMALLEST_LIMIT_BYTES),
            queue_buffering_max_messages=500_000,
        )


class Compression(StrEnum):
    """Compression codecs of record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """The replicas that must store a record before it is acknowledged."""

    NOBODY = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    *,
    topic: options.Topic,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Separator between key and value in each line."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="Header of every record; repeatable."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Read JSON objects, one per line, as `consume --json` prints them.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Partition of every record (default: by key).")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression codec of batches.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option("--acks", help="Replicas that must acknowledge a record.")] = Acks.ALL,
    broker: options.Broker = None,
) -> None:
    """Write lines of standard input to a topic.

    With --json a line has the field value (text or any JSON), and optionally key, headers, partition and
    timestamp; value_base64 and key_base64 contain binary data. A value of null deletes its key in a compacted
    topic.

    Example: echo 'alice:{"amount": 20}' | headrace produce orders --key-separator :
    """
    read = _line_reader(key, key_separator, _read_headers(header), partition, as_json=as_json)
    from headrace.cli.topic_admin import choose_partitions, read_batch_limit

    with connect(broker) as session:
        choose_partitions(session, topic, () if partition is None else (partition,))
        limit_bytes = read_batch_limit(session, topic)
        sender = RecordSender(
            session, topic, acks=acks.value, compression=compression.value, limit_bytes=limit_bytes
        )
        with _interruptible(sender):
            _send_lines(sender, sys.stdin.buffer, read, skip_blank=as_json)
    print_line(f"{_records(sender.acknowledged)} {'sent' if acks is Acks.NOBODY else 'acknowledged'}")


@contextmanager
def _interruptible(sender: RecordSender) -> Iterator[None]:
    """On Ctrl-C, wait for records in flight and report how many were stored."""
    try:
        yield
    except KeyboardInterrupt:
        sender.finish()
        note(f"interrupted: {_records(sender.acknowledged)} acknowledged")
        raise


def _line_reader(
    key: str | None, separator: str | None, headers: Headers, partition: int | None, *, as_json: bool
) -> Callable[[bytes], InputRecord]:
    place = ANY_PARTITION if partition is None else partition
    if as_json and (key is not None or separator is not None):
        raise Misuse("--json lines carry their own keys: leave out --key and --key-separator.")
    if as_json:
        return json_lines(headers=headers, partition=place)
    if key is not None and separator is not None:
        raise Misuse(
            "--key sets the same key for every record, --key-separator takes it from the line: choose one."
        )
    if separator == "":
        raise Misuse("--key-separator is empty: set the text between key and value, for example : or a tab.")
    return plain_lines(
        key=None if key is None else key.encode(),
        separator=None if separator is None else separator.encode(),
        headers=headers,
        partition=place,
    )


def _read_headers(pairs: list[str] | None) -> Headers:
    headers: Headers = []
    for pair in pairs or ():
        name, colon, value = pair.partition(":")
        if not name or not colon:
            raise Misuse(f"--header {pair!r} is not NAME:VALUE, for example source:web.")
        headers.append((name, value.encode()))
    return headers


def _send_lines(
    sender: RecordSender, lines: BinaryIO, read: Callable[[bytes], InputRecord], *, skip_blank: bool
) -> None:
    """Send every line, up to the first that is malformed or rejected."""
    if lines.isatty():
        note("type records, one a line; Ctrl-D ends")
    bad: str | None = None
    with Progress("sent", total=_size_bytes(lines)) as progress:
        for number, line in enumerate(lines, start=1):
            if skip_blank and not line.strip():
                continue
            try:
                sender.send(number, read(line.removesuffix(b"\n")))
            except MalformedLine as fault:
                bad = f"line {number} {fault}."
            if bad or sender.failure:
                break
            progress.advance(1, len(line))
        sender.finish()
    _report(sender, bad)


def _report(sender: RecordSender, bad: str | None) -> None:
    """Raise an error if a line was malformed or a record was rejected, with what was stored."""
    done = f"{_records(sender.acknowledged)} acknowledged; nothing from that line on was sent"
    if sender.failure is not None:
        done = f"{_records(sender.acknowledged)} acknowledged, the rest was not"
        bad = f"{_lines(sender.failure)} not accepted: {sender.failure.reason}."
    if bad is not None:
        raise RequestFailed(f"{bad}\n{done}. Correct what is wrong, and send the rest.")


def _lines(failure: SendFailure) -> str:
    one = failure.line == failure.last
    return f"line {failure.line} was" if one else f"lines {failure.line} to {failure.last} were"


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _size_bytes(lines: BinaryIO) -> int | None:
    """The size of the input if it is a file."""
    try:
        status = os.fstat(lines.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
