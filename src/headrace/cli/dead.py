"""`headrace dead`: lists, shows and resends the dead letters of jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.cli.session import BrokerSession
    from headrace.streams.redrive import DeadLetter

SUFFIX: Final = ".dead"


def dead_topic(session: BrokerSession, name: str) -> str:
    """The dead-letter topic for the name of a job, or of the topic itself."""
    from headrace.cli.topic_admin import find_partitions, topic_names

    known = topic_names(session)
    is_own = name.endswith(SUFFIX) or (f"{name}{SUFFIX}" not in known and name in known)
    topic = name if is_own else f"{name}{SUFFIX}"
    find_partitions(session, topic)  # raises an error if it does not exist
    return topic


def read_letters(
    session: BrokerSession, topic: str, *, begin: Mapping[int, int] | None = None
) -> Iterator[DeadLetter]:
    """The dead letters of a topic, starting at the offsets in `begin`."""
    from headrace.cli.reader import TopicConsumer, read_offset_ranges
    from headrace.cli.topic_admin import choose_partitions

    partitions = [(topic, number) for number in choose_partitions(session, topic, ())]
    ranges = {
        number: held
        for (_, number), held in read_offset_ranges(session, partitions, committed_only=True).items()
    }
    until = {number: held.end for number, held in ranges.items()}
    reader = TopicConsumer(session, topic, group=None, until=until, isolation_level="read_committed")
    try:
        reader.assign(
            {number: max(held.start, (begin or {}).get(number, 0)) for number, held in ranges.items()}
        )
        for batch in reader.batches():
            yield from map(_letter, batch)
    finally:
        reader.close()


def sent_again(session: BrokerSession, topic: str) -> dict[int, int]:
    """For each partition, the offset before which dead letters were resent."""
    from confluent_kafka import Consumer, TopicPartition

    from headrace.cli.topic_admin import choose_partitions
    from headrace.streams.redrive import group_of

    consumer = Consumer(session.client_config(group_id=group_of(topic), enable_auto_commit=False))
    try:
        asked = [TopicPartition(topic, number) for number in choose_partitions(session, topic, ())]
        found = session.request(
            lambda: consumer.committed(asked, timeout=session.timeout_s),
            "return the resent offsets",
        )
        return {place.partition: max(0, place.offset) for place in found}
    finally:
        consumer.close()


def _letter(message: Any) -> DeadLetter:
    from headrace.streams.redrive import DeadLetter

    return DeadLetter(
        partition=message.partition(),
        offset=message.offset(),
        time_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=dict(message.headers() or ()),
    )


commands = typer.Typer(no_args_is_help=True, help="List, show and resend dead letters of jobs.")

Name = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Name of the job, or of its dead-letter topic.", show_default=False),
]


@commands.command("list")
def list_(*, as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List the dead-letter topics, with the number of dead letters and of those not yet resent.

    Example: headrace dead list
    """
    from headrace.cli.topic_admin import topic_names

    found = []
    with connect(broker) as session:
        for topic in (name for name in topic_names(session) if name.endswith(SUFFIX)):
            again = sent_again(session, topic)
            letters = list(read_letters(session, topic))
            waiting = sum(letter.offset >= again[letter.partition] for letter in letters)
            newest = letters[-1] if letters else None
            found.append((topic, len(letters), waiting, newest.reason if newest else None))
    if as_json:
        names = ("topic", "letters", "waiting", "newest_reason")
        print_json([dict(zip(names, row, strict=True)) for row in found])
    elif not found:
        note("there are no topics of dead letters: none ends in .dead")
    else:
        print_table(["topic", "letters", "waiting", "newest reason"], found)


@commands.command()
def show(
    *,
    name: Name,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, help="Number of dead letters to show, the newest.")
    ] = 10,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Show dead letters: origin, reason and content.

    Example: headrace dead show revenue -n 3
    """
    from collections import deque

    with connect(broker) as session:
        topic = dead_topic(session, name)
        letters = deque(read_letters(session, topic), maxlen=count)
    if as_json:
        print_json([_fields(letter) for letter in letters])
        return
    if not letters:
        note(f"there are no letters in {topic}")
    for letter in letters:
        print_line(f"{letter.offset}  {_time(letter)}  {letter.origin}")
        print_line(f"    {letter.reason}")
        print_line(f"    {_text(letter.value)}")


@commands.command()
def redrive(
    *,
    name: Name,
    pipeline: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PIPELINE]",
            help="Python file that defines the job; needed for rows that a sink rejected.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="DIR", help="State directory of the job.")
    ] = None,
    yes: options.Yes = False,
    broker: options.Broker = None,
) -> None:
    """Resend the dead letters of a job that were not resent yet.

    Records that could not be parsed are written to their original topic again. Rows that a sink rejected are
    written to the sink again, and replace the current rows with the same keys. What fails again becomes a
    dead letter again.

    Example: headrace dead redrive revenue pipeline.py
    """
    from headrace.settings import Settings
    from headrace.streams.pipeline import load_app
    from headrace.streams.redrive import redrive as send_again

    with connect(broker) as session:
        topic = dead_topic(session, name)
        letters = list(read_letters(session, topic, begin=sent_again(session, topic)))
        if not letters:
            note(f"no letter in {topic} waits to be sent again")
            return
        number = "1 letter" if len(letters) == 1 else f"{len(letters)} letters"
        confirm(f"Send {number} of {topic} again?", yes=yes)
        settings = Settings.read(project=None if pipeline is None else pipeline.parent)
        outcome = send_again(
            letters,
            topic,
            config=session.client_config(),
            app=None if pipeline is None else load_app(pipeline),
            state=settings.state(state),
            checkpoints=settings.checkpoints(),
        )
    for place, count in sorted(outcome.sent.items()):
        print_line(f"{place}: {count} sent again")
    for letter, reason in outcome.refused:
        print_line(f"{letter.target}: refused again: {reason}")


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "time": _time(letter),
        "origin": letter.origin,
        "reason": letter.reason,
        "key": None if letter.key is None else _text(letter.key),
        "value": _text(letter.value),
    }


def _time(letter: DeadLetter) -> str:
    return datetime.fromtimestamp(letter.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
