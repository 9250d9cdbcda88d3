"""`headrace group`: list, describe, seek and delete consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_group, complete_topic
from headrace.cli.output import RequestFailed, confirm, note, print_json, print_line, print_table
from headrace.cli.reader import Position, read_offset_ranges, read_position
from headrace.cli.session import connect
from headrace.errors import Misuse, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.cli.reader import Partition
    from headrace.cli.session import BrokerSession

EMPTY: Final = "empty"
DEAD: Final = "dead"


class UnknownGroup(RequestFailed):
    """The group does not exist."""


class ActiveGroup(RequestFailed):
    """The group has members, and the request is possible only for an empty group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group in a list."""

    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One consumer of a group."""

    member: str
    instance: str | None
    """The instance id of a static member."""
    client: str
    host: str
    partitions: tuple[str, ...]
    """Its assignment, as `topic/partition`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """The committed offset and lag of a group in one partition."""

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    lag: int
    """The number of offsets still to read; without a committed offset, all offsets of the partition."""
    member: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """The output of `headrace group describe`."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: int | None
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionLag, ...]
    lag: int
    """The total lag of all partitions."""


def group_names(session: BrokerSession) -> list[str]:
    """The names of all consumer groups."""
    return [listing.group for listing in list_groups(session)]


def list_groups(session: BrokerSession) -> list[GroupListing]:
    """All consumer groups, sorted by name."""
    result = session.request(
        lambda: session.admin.list_consumer_groups(request_timeout=session.timeout_s).result(),
        "list its groups",
    )
    for error in result.errors:
        raise session.failure(error.args[0], "list all of its groups")
    listings = [
        GroupListing(group=found.group_id, state=_state(found), type=_type(found)) for found in result.valid
    ]
    return sorted(listings, key=lambda listing: listing.group)


def describe_group(session: BrokerSession, group: str) -> GroupDetails:
    """The members and lag of a group; raises `UnknownGroup` if it does not exist."""
    found = _describe(session, group)
    committed = read_committed_offsets(session, group)
    if _state(found) == DEAD and not committed:
        known = did_you_mean(group, group_names(session))
        raise UnknownGroup(
            f"group {group!r} does not exist.{known}\n`headrace group list` shows what there is."
        )
    lags = _lags(session, committed, _owners(found))
    coordinator = found.coordinator
    return GroupDetails(
        group=group,
        state=_state(found),
        type=_type(found),
        assignor=found.partition_assignor,
        coordinator=None if coordinator is None else coordinator.id,
        members=tuple(_member(member) for member in found.members),
        partitions=lags,
        lag=sum(partition.lag for partition in lags),
    )


def read_committed_offsets(session: BrokerSession, group: str) -> dict[Partition, int]:
    """The committed offsets of a group, by topic and partition."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = ConsumerGroupTopicPartitions(group)
    answer = session.request_one("list_consumer_group_offsets", asked, f"list the offsets of group {group!r}")
    found = [place for place in answer.topic_partitions or () if place.error is None and place.offset >= 0]
    return {(place.topic, place.partition): place.offset for place in sorted(found)}


def write_committed_offsets(session: BrokerSession, group: str, offsets: Mapping[Partition, int]) -> None:
    """Commit offsets for a group, which must have no members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, places)
    act = f"move group {group!r}"
    answer = session.request_one("alter_consumer_group_offsets", asked, act)
    for place in answer.topic_partitions or ():
        if place.error is not None:
            raise session.failure(place.error, f"{act} on partition {place.partition} of {place.topic!r}")


def delete_group(session: BrokerSession, group: str) -> None:
    """Delete a group and its offsets."""
    require_idle(session, group)
    session.request_one("delete_consumer_groups", group, f"delete group {group!r}")


def require_idle(session: BrokerSession, group: str) -> None:
    """Raise `ActiveGroup` unless the group is empty: members would overwrite the change."""
    found = _describe(session, group)
    if _state(found) in (EMPTY, DEAD):
        return
    clients = ", ".join(
        sorted(f"{member.client_id} at {member.host.lstrip('/')}" for member in found.members)
    )
    raise ActiveGroup(
        f"group {group!r} is active ({clients or _state(found)}): its members would overwrite the change.\n"
        "Stop them, wait until `headrace group describe` says empty, and repeat the command."
    )


def _describe(session: BrokerSession, group: str) -> Any:
    return session.request_one("describe_consumer_groups", group, f"describe group {group!r}")


def _lags(
    session: BrokerSession, committed: Mapping[Partition, int], owners: Mapping[Partition, str]
) -> tuple[PartitionLag, ...]:
    partitions = sorted(committed.keys() | owners.keys())
    ranges = read_offset_ranges(session, partitions)
    return tuple(
        PartitionLag(
            topic=topic,
            partition=number,
            committed=committed.get((topic, number)),
            start=held.start,
            end=held.end,
            # Records that retention has deleted do not count.
            lag=max(0, held.end - max(committed.get((topic, number), 0), held.start)),
            member=owners.get((topic, number)),
        )
        for topic, number in partitions
        for held in [ranges[topic, number]]
    )


def _owners(found: Any) -> dict[Partition, str]:
    return {
        (place.topic, place.partition): member.member_id
        for member in found.members
        for place in member.assignment.topic_partitions
    }


def _member(member: Any) -> GroupMember:
    return GroupMember(
        member=member.member_id,
        instance=member.group_instance_id,
        client=member.client_id,
        host=member.host.lstrip("/"),
        partitions=tuple(
            f"{place.topic}/{place.partition}" for place in sorted(member.assignment.topic_partitions)
        ),
    )


def _state(found: Any) -> str:
    return str(found.state.name).lower().replace("_", " ")


def _type(found: Any) -> str:
    return str(found.type.name).lower()


commands = typer.Typer(no_args_is_help=True, help="List, describe, seek and delete consumer groups.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The committed offset of a partition before and after a seek."""

    topic: str
    partition: int
    before: int | None
    after: int


@commands.command("list")
def list_(as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List the consumer groups and their states.

    Example: headrace group list
    """
    with connect(broker) as session:
        found = list_groups(session)
    if as_json:
        print_json(found)
    elif not found:
        note("there are no groups; `headrace consume TOPIC --group NAME` creates one")
    else:
        print_table(
            ["group", "state", "type"], [(listing.group, listing.state, listing.type) for listing in found]
        )


@commands.command()
def describe(group: options.Group, as_json: options.Json = False, broker: options.Broker = None) -> None:
    """Show the members, committed offsets and lag of a group.

    Example: headrace group describe billing
    """
    with connect(broker) as session:
        description = describe_group(session, group)
    if as_json:
        print_json(description)
    else:
        _print_description(description)


@commands.command()
def seek(
    *,
    group: options.Group,
    to: Annotated[
        Position,
        typer.Option(
            "--to",
            parser=read_position,
            metavar="start|end|OFFSET|TIME",
            help="New position; -5m is five minutes ago.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only this topic; repeatable (default: all topics of the group).",
            autocompletion=complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes without making them.")
    ] = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Move the committed offsets of a group without members.

    Example: headrace group seek billing --topic orders --to -1h --dry-run
    """
    with connect(broker) as session:
        require_idle(session, group)
        moves = plan_moves(session, group, to, topics=topic or (), numbers=partition or ())
        if not dry_run:
            after = {(move.topic, move.partition): move.after for move in moves}
            write_committed_offsets(session, group, after)
    if as_json:
        print_json(moves)
        return
    print_table(
        ["topic", "partition", "before", "", "after"],
        [(move.topic, move.partition, move.before, "→", move.after) for move in moves],
    )
    if dry_run:
        note("nothing was changed: this was a dry run")


@commands.command()
def delete(
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="Names of groups.", autocompletion=complete_group)
    ],
    yes: options.Yes = False,
    broker: options.Broker = None,
) -> None:
    """Delete groups that have no members, and their offsets.

    Example: headrace group delete billing --yes
    """
    with connect(broker) as session:
        for group in groups:
            describe_group(session, group)
            require_idle(session, group)
        confirm(f"Delete {', '.join(groups)}, with all committed offsets?", yes=yes)
        for group in groups:
            delete_group(session, group)
            print_line(f"deleted group {group}")


def plan_moves(
    session: BrokerSession, group: str, to: Position, *, topics: Collection[str], numbers: Collection[int]
) -> list[Move]:
    """The new offset of each partition for the position `to`."""
    from headrace.cli.reader import read_offset_ranges, resolve

    committed = read_committed_offsets(session, group)
    partitions = _chosen(session, topics or {topic for topic, _ in committed}, numbers)
    if not partitions:
        raise Misuse(f"group {group!r} has no committed offsets: select its topics with --topic.")
    after = resolve(session, to, read_offset_ranges(session, partitions))
    return [
        Move(topic=topic, partition=number, before=committed.get((topic, number)), after=after[topic, number])
        for topic, number in sorted(partitions)
    ]


def _chosen(session: BrokerSession, topics: Collection[str], numbers: Collection[int]) -> list[Partition]:
    from headrace.cli.topic_admin import choose_partitions

    return [(topic, number) for topic in topics for number in choose_partitions(session, topic, numbers)]


def _print_description(description: GroupDetails) -> None:
    how = f", {description.assignor}" if description.assignor else ""
    print_line(
        f"group {description.group}: {description.state} ({description.type}{how}), lag {description.lag}"
    )
    if description.partitions:
        print_line("")
        rows = [
            (part.topic, part.partition, part.committed, part.end, part.lag, part.member)
            for part in description.partitions
        ]
        print_table(["topic", "partition", "committed", "end", "lag", "member"], rows)
    if description.members:
        print_line("")
        members = [
            (member.member, member.instance, member.client, member.host, member.partitions)
            for member in description.members
        ]
        print_table(["member", "instance", "client", "host", "partitions"], members)
