"""`headrace consume`: prints the records of a topic."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_group
from headrace.cli.output import Progress, RequestFailed, discard_standard_output, terminated_like_interrupt
from headrace.cli.reader import END, START, Position, PositionKind, TopicConsumer, read_position
from headrace.cli.record_lines import VALUES_ONLY, json_line, read_format
from headrace.cli.session import connect
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from confluent_kafka import Message

    from headrace.cli.session import BrokerSession

PLACES = "start|end|OFFSET|TIME"


def consume(
    *,
    topic: options.Topic,
    begin: Annotated[
        Position | None,
        typer.Option(
            "--from",
            parser=read_position,
            metavar=PLACES,
            help="Where to start; -5m is five minutes ago (default: start, or the group's offsets).",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        Position | None,
        typer.Option(
            "--until",
            parser=read_position,
            metavar=PLACES,
            show_default=False,
            help="Where to stop; end is the current end (default: read until Ctrl-C).",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="Stop after this many records.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Read as a member of this consumer group, and commit offsets.",
            autocompletion=complete_group,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Read only this partition; repeatable.")
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=r"%t topic, %p partition, %o offset, %k key, %v value, %h headers, %T timestamp (ms).",
        ),
    ] = VALUES_ONLY,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
    uncommitted: Annotated[
        bool,
        typer.Option(
            "--uncommitted", help="Also print records of open and aborted transactions (read_uncommitted)."
        ),
    ] = False,
    broker: options.Broker = None,
) -> None:
    r"""Print the records of a topic.

    With --group, offsets are committed after the records were printed: at-least-once.

    Example: headrace consume orders --from -1h --until end --format '%o %k %v\n'
    """
    write_record = json_line if as_json else _read_layout(layout)
    _check_group(group, begin, partition)
    with connect(broker) as session, terminated_like_interrupt():
        plan = _Plan(session, topic, partition or (), committed_only=not uncommitted)
        with plan.reader(group, begin, until) as reader:
            _print_batches(reader.batches(count), write_record, total=count or plan.expected)


class _Plan:
    """The partitions to read, with their start and end offsets."""

    def __init__(
        self, session: BrokerSession, topic: str, numbers: Collection[int], *, committed_only: bool
    ) -> None:
        from headrace.cli.topic_admin import choose_partitions

        self._session = session
        self._topic = topic
        self._committed_only = committed_only
        self._numbers = choose_partitions(session, topic, numbers)
        self.expected: int | None = None
        """How many offsets lie between beginning and end, where there is an end."""

    @contextmanager
    def reader(
        self, group: str | None, begin: Position | None, until: Position | None
    ) -> Iterator[TopicConsumer]:
        """A started reader, which is closed at the end of the block."""
        stop = None if until is None else self._resolve(until)
        start = None if group else self._resolve(begin or START)
        if stop is not None and start is not None:
            self.expected = sum(max(0, stop[number] - start[number]) for number in self._numbers)
        reader = TopicConsumer(
            self._session,
            self._topic,
            group=group,
            until=stop,
            isolation_level="read_committed" if self._committed_only else "read_uncommitted",
            auto_offset_reset="latest" if begin == END else "earliest",
        )
        try:
            reader.subscribe() if start is None else reader.assign(start)
            yield reader
        finally:
            reader.close()

    def _resolve(self, position: Position) -> dict[int, int]:
        from headrace.cli.reader import read_offset_ranges, resolve

        partitions = [(self._topic, number) for number in self._numbers]
        ranges = read_offset_ranges(self._session, partitions, committed_only=self._committed_only)
        return {number: at for (_, number), at in resolve(self._session, position, ranges).items()}


def _print_batches(
    batches: Iterator[list[Message]], write_record: Callable[[Message], bytes], *, total: int | None
) -> None:
    # One write and one flush per batch: one per record takes ten times as long in a pipe.
    output = sys.stdout.buffer
    with Progress("read", total=total, wanted=not sys.stdout.isatty()) as progress:
        for batch in batches:
            text = b"".join([write_record(message) for message in batch])
            with _written_or_explained():
                output.write(text)
                output.flush()
            progress.advance(len(batch), len(batch))


@contextmanager
def _written_or_explained() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as fault:
        discard_standard_output()
        raise RequestFailed(
            f"the records cannot be written: {fault.strerror}.\n"
            "Make room, or write elsewhere, and try again; a group has committed only what was written."
        ) from fault


def _read_layout(layout: str) -> Callable[[Message], bytes]:
    try:
        return read_format(layout, for_terminal=sys.stdout.isatty())
    except ValueError as fault:
        raise Misuse(f"--format: {fault}.") from fault


def _check_group(group: str | None, begin: Position | None, partition: list[int] | None) -> None:
    if group is None:
        return
    if partition:
        raise Misuse("--partition and --group exclude each other: the group assigns the partitions.")
    if begin is not None and begin.kind in (PositionKind.OFFSET, PositionKind.TIME):
        raise Misuse(
            f"a group continues at its committed offsets: first run `headrace group seek {group} --to …`, "
            "or leave out --group. (start and end apply to partitions without a committed offset.)"
        )
