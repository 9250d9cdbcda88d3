"""`headrace topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_topic
from headrace.cli.output import RequestFailed, confirm, note, print_json, print_line, print_table, size_text
from headrace.cli.session import connect
from headrace.cli.topic_admin import TopicSetting, is_internal
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.cli.session import BrokerSession
    from headrace.cli.topic_admin import TopicSetting

STATUS: Final = "headrace.overflow.status"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOverflow:
    """The backlog of one partition, and counts since the broker started."""

    partition: int
    backlog_records: int
    backlog_bytes: int
    full_percent: float
    slowest_group: str | None
    dropped_records: int
    refused_records: int
    timed_out_records: int
    waiting_batches: int


def read_overflow(configs: Iterable[TopicSetting]) -> tuple[PartitionOverflow, ...]:
    """The backlog of each partition; empty if the topic has no limit, or the broker is Apache Kafka."""
    text = next((config.value for config in configs if config.name == STATUS), None)
    if text is None:
        return ()
    known = PartitionOverflow.__dataclass_fields__
    return tuple(
        PartitionOverflow(**{name: value for name, value in found.items() if name in known})
        for found in json.loads(text)
    )


def print_overflow(partitions: Sequence[PartitionOverflow]) -> None:
    """Print the backlogs as a table."""
    print_line("")
    rows = [
        (
            part.partition,
            f"{part.full_percent:g} %",
            part.backlog_records,
            size_text(part.backlog_bytes),
            part.slowest_group,
            part.dropped_records,
            part.refused_records,
            part.waiting_batches,
            part.timed_out_records,
        )
        for part in partitions
    ]
    print_table(
        [
            "partition",
            "full",
            "backlog",
            "size",
            "slowest group",
            "dropped",
            "refused",
            "waiting",
            "timed out",
        ],
        rows,
    )


commands = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

ALREADY_EXISTS = 36
"""Kafka's TOPIC_ALREADY_EXISTS."""

Configs = Annotated[
    list[str] | None,
    typer.Option(
        "--config", metavar="NAME=VALUE", help="Topic configuration under Kafka's name; repeatable."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition of a topic: replicas, offsets and size."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int
    end: int
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """The output of `headrace topic describe`."""

    topic: str
    partitions: tuple[PartitionDescription, ...]
    overflow: tuple[PartitionOverflow, ...]
    configs: tuple[TopicSetting, ...]


@commands.command()
def create(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the new topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, help="Number of partitions (default: the broker's default)."
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, help="Replication factor (default: the broker's default)."),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")
    ] = False,
    broker: options.Broker = None,
) -> None:
    """Create a topic.

    Example: headrace topic create orders --partitions 6 --config retention.ms=604800000
    """
    from headrace.cli import topic_admin

    configs = _read_configs(config)
    with connect(broker) as session:
        try:
            topic_admin.create_topic(
                session, topic, partitions=partitions, replicas=replicas, configs=configs
            )
        except RequestFailed as error:
            if error.code != ALREADY_EXISTS or not if_not_exists:
                raise
            note(f"topic {topic} exists: nothing changed")
            return
    print_line(f"created topic {topic}")


@commands.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Also list internal topics.")] = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """List the topics.

    Example: headrace topic list --json
    """
    from headrace.cli import topic_admin

    with connect(broker) as session:
        found = [
            listing for listing in topic_admin.list_topics(session) if every or not is_internal(listing.topic)
        ]
    if as_json:
        print_json(found)
    elif not found:
        note("there are no topics; `headrace topic create NAME` creates one")
    else:
        rows = [(listing.topic, listing.partitions, listing.replicas) for listing in found]
        print_table(["topic", "partitions", "replicas"], rows)


@commands.command()
def describe(
    topic: options.Topic,
    configs: Annotated[
        bool,
        typer.Option("--configs", help="Show all settings, not only those that differ from the default."),
    ] = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Show a topic's partitions, offsets, sizes and settings, and its backlog if it has a limit.

    Settings that differ from the default are marked with a star.

    Example: headrace topic describe orders --configs
    """
    with connect(broker) as session:
        description = describe_topic(session, topic)
    if as_json:
        print_json(description)
        return
    _print_partitions(description)
    if description.overflow:
        print_overflow(description.overflow)
    _print_configs(description, every=configs)


@commands.command()
def alter(
    topic: options.Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, help="New number of partitions, larger than the current one."
        ),
    ] = None,
    config: Configs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset a setting to its default; repeatable."),
    ] = None,
    broker: options.Broker = None,
) -> None:
    """Change the settings of a topic, or add partitions.

    With more partitions, keys may map to other partitions. Partitions cannot be removed.

    Example: headrace topic alter orders --config retention.ms=86400000 --unset segment.bytes
    """
    from headrace.cli import topic_admin

    put = _read_configs(config)
    if not (partitions or put or unset):
        raise Misuse("nothing to alter: use --config NAME=VALUE, --unset NAME or --partitions N.")
    with connect(broker) as session:
        topic_admin.find_partitions(session, topic)
        if put or unset:
            topic_admin.alter_configs(session, topic, put=put, unset=unset or ())
        if partitions:
            topic_admin.add_partitions(session, topic, partitions)
    print_line(f"altered topic {topic}")


@commands.command()
def delete(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics to delete.", autocompletion=complete_topic)
    ],
    yes: options.Yes = False,
    broker: options.Broker = None,
) -> None:
    """Delete topics and all their records.

    Example: headrace topic delete orders --yes
    """
    from headrace.cli import topic_admin

    with connect(broker) as session:
        for topic in topics:
            topic_admin.find_partitions(session, topic)
        confirm(
            f"Delete {', '.join(topics)} and all records in {'it' if len(topics) == 1 else 'them'}?", yes=yes
        )
        for topic in topics:
            topic_admin.delete_topic(session, topic)
            print_line(f"deleted topic {topic}")


def describe_topic(session: BrokerSession, topic: str) -> TopicDetails:
    """The details of a topic."""
    from headrace.cli import topic_admin
    from headrace.cli.reader import read_offset_ranges
    from headrace.client.topics import partition_sizes

    places = topic_admin.find_partitions(session, topic)
    ranges = read_offset_ranges(session, [(topic, place.partition) for place in places])
    sizes = partition_sizes(session.cluster, topic, [place.partition for place in places])
    partitions = tuple(
        PartitionDescription(
            partition=place.partition,
            leader=place.leader,
            replicas=place.replicas,
            in_sync=place.in_sync,
            start=ranges[topic, place.partition].start,
            end=ranges[topic, place.partition].end,
            size_bytes=sizes.get(place.partition),
        )
        for place in places
    )
    configs = topic_admin.read_configs(session, topic)
    return TopicDetails(
        topic=topic,
        partitions=partitions,
        overflow=read_overflow(configs),
        configs=tuple(config for config in configs if config.name != STATUS),
    )


def _print_partitions(description: TopicDetails) -> None:
    rows = [
        (
            part.partition,
            part.leader,
            part.replicas,
            part.in_sync,
            part.start,
            part.end,
            size_text(part.size_bytes),
        )
        for part in description.partitions
    ]
    print_table(["partition", "leader", "replicas", "in sync", "start", "end", "size"], rows)


def _print_configs(description: TopicDetails, *, every: bool) -> None:
    shown = [config for config in description.configs if every or not config.is_default]
    if shown:
        print_line("")
        rows = [("" if config.is_default else "*", config.name, config.value) for config in shown]
        print_table(["", "setting", "value"], rows)


def _read_configs(pairs: list[str] | None) -> dict[str, str]:
    configs = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Misuse(f"--config {pair!r} is not NAME=VALUE, for example retention.ms=86400000.")
        configs[name] = value
    return configs
