"""`headrace produce`: records from standard input, one a line."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.failure import Misuse, RequestFailed
from headrace.cli.output import note, print_line
from headrace.cli.progress import Progress
from headrace.cli.record_input import ANY_PARTITION, BadLine, Headers, json_lines, plain_lines
from headrace.cli.session import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.cli.record_input import NewRecord
    from headrace.cli.sender import Sender, SendFailure


class Compression(StrEnum):
    """The codecs of Kafka's record batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """Who must have a record before it counts as sent."""

    NOBODY = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    *,
    topic: options.Topic,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="What stands between key and value in each line."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON objects, such as those that consume --json prints.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Where to; otherwise by key.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches are packed.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option("--acks", help="Who must have a record before it counts.")] = Acks.ALL,
    broker: options.Broker = None,
) -> None:
    """Send lines of standard input as records.

    With --json a line has the fields value (text, or any JSON), and if wanted key, headers, partition and
    timestamp; value_base64 and key_base64 hold bytes that are not text. A value of null deletes its key in a
    compacted topic.

    Example: echo 'alice:{"amount": 20}' | headrace produce orders --key-separator :
    """
    read = _line_reader(key, key_separator, _read_headers(header), partition, as_json=as_json)
    from headrace.cli.sender import Sender
    from headrace.cli.topic_admin import choose_partitions, read_batch_limit

    with connect(broker) as session:
        choose_partitions(session, topic, () if partition is None else (partition,))
        limit_bytes = read_batch_limit(session, topic)
        sender = Sender(
            session, topic, acks=acks.value, compression=compression.value, limit_bytes=limit_bytes
        )
        with _interruptible(sender):
            _send_lines(sender, sys.stdin.buffer, read, skip_blank=as_json)
    print_line(f"{_records(sender.acknowledged)} {'sent' if acks is Acks.NOBODY else 'acknowledged'}")


@contextmanager
def _interruptible(sender: Sender) -> Iterator[None]:
    """On Ctrl-C wait for what was sent already, and say how much it was."""
    try:
        yield
    except KeyboardInterrupt:
        sender.finish()
        note(f"interrupted: {_records(sender.acknowledged)} acknowledged")
        raise


def _line_reader(
    key: str | None, separator: str | None, headers: Headers, partition: int | None, *, as_json: bool
) -> Callable[[bytes], NewRecord]:
    place = ANY_PARTITION if partition is None else partition
    if as_json and (key is not None or separator is not None):
        raise Misuse("--json lines carry their own keys: leave out --key and --key-separator.")
    if as_json:
        return json_lines(headers=headers, partition=place)
    if key is not None and separator is not None:
        raise Misuse(
            "--key gives every record the same key, --key-separator takes it from the line: choose one."
        )
    if separator == "":
        raise Misuse(
            "--key-separator is empty: give what stands between key and value, for example : or a tab."
        )
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
    sender: Sender, lines: BinaryIO, read: Callable[[bytes], NewRecord], *, skip_blank: bool
) -> None:
    """Send every line, up to the first that is no record or is not accepted."""
    if lines.isatty():
        note("type records, one a line; Ctrl-D ends")
    bad: str | None = None
    with Progress("sent", total=_size_bytes(lines)) as progress:
        for number, line in enumerate(lines, start=1):
            if skip_blank and not line.strip():
                continue
            try:
                sender.send(number, read(line.removesuffix(b"\n")))
            except BadLine as fault:
                bad = f"line {number} {fault}."
            if bad or sender.failure:
                break
            progress.advance(1, len(line))
        sender.finish()
    _report(sender, bad)


def _report(sender: Sender, bad: str | None) -> None:
    """Fail if a line was bad or a record was refused, with what is stored and what is not."""
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
    """The size of the input, where it is a file."""
    try:
        status = os.fstat(lines.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
