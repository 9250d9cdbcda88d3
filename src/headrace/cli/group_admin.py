"""What a broker knows about consumer groups: their members, their offsets, and how far behind they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.failure import RequestFailed
from headrace.cli.offsets import read_extents
from headrace.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.offsets import Partition
    from headrace.cli.session import Session

EMPTY: Final = "empty"
DEAD: Final = "dead"


class UnknownGroup(RequestFailed):
    """The group does not exist."""


class ActiveGroup(RequestFailed):
    """The group has members, and what was asked is possible only without them."""


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
    """The name of a static member."""
    client: str
    host: str
    partitions: tuple[str, ...]
    """What it was assigned, as `topic/partition`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is with one partition."""

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    lag: int
    """How many offsets are left to read. Without a commit: all that the partition holds."""
    member: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """Everything that `group describe` shows."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator: int | None
    members: tuple[GroupMember, ...]
    partitions: tuple[PartitionLag, ...]
    lag: int
    """The lag of all partitions together."""


def group_names(session: Session) -> list[str]:
    """The names of all consumer groups."""
    return [listing.group for listing in list_groups(session)]


def list_groups(session: Session) -> list[GroupListing]:
    """All consumer groups by name."""
    result = session.ask(
        lambda: session.admin.list_consumer_groups(request_timeout=session.timeout_s).result(),
        "list its groups",
    )
    for error in result.errors:
        raise session.failure(error.args[0], "list all of its groups")
    listings = [
        GroupListing(group=found.group_id, state=_state(found), type=_type(found)) for found in result.valid
    ]
    return sorted(listings, key=lambda listing: listing.group)


def describe_group(session: Session, group: str) -> GroupDescription:
    """A group's members and lag; a group that does not exist is an error."""
    found = _describe(session, group)
    committed = read_committed_offsets(session, group)
    if _state(found) == DEAD and not committed:
        known = did_you_mean(group, group_names(session))
        raise UnknownGroup(
            f"group {group!r} does not exist.{known}\n`headrace group list` shows what there is."
        )
    lags = _lags(session, committed, _owners(found))
    coordinator = found.coordinator
    return GroupDescription(
        group=group,
        state=_state(found),
        type=_type(found),
        assignor=found.partition_assignor,
        coordinator=None if coordinator is None else coordinator.id,
        members=tuple(_member(member) for member in found.members),
        partitions=lags,
        lag=sum(partition.lag for partition in lags),
    )


def read_committed_offsets(session: Session, group: str) -> dict[Partition, int]:
    """The offsets that a group has committed, by topic and partition."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = ConsumerGroupTopicPartitions(group)
    answer = session.ask_about("list_consumer_group_offsets", asked, f"list the offsets of group {group!r}")
    found = [place for place in answer.topic_partitions or () if place.error is None and place.offset >= 0]
    return {(place.topic, place.partition): place.offset for place in sorted(found)}


def write_committed_offsets(session: Session, group: str, offsets: Mapping[Partition, int]) -> None:
    """Commit offsets in the name of a group, which must have no members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    asked = ConsumerGroupTopicPartitions(group, places)
    act = f"move group {group!r}"
    answer = session.ask_about("alter_consumer_group_offsets", asked, act)
    for place in answer.topic_partitions or ():
        if place.error is not None:
            raise session.failure(place.error, f"{act} on partition {place.partition} of {place.topic!r}")


def delete_group(session: Session, group: str) -> None:
    """Delete a group and its offsets."""
    require_idle(session, group)
    session.ask_about("delete_consumer_groups", group, f"delete group {group!r}")


def require_idle(session: Session, group: str) -> None:
    """Fail unless the group is without members: they hold their own offsets, and would overwrite ours."""
    found = _describe(session, group)
    if _state(found) in (EMPTY, DEAD):
        return
    clients = ", ".join(
        sorted(f"{member.client_id} at {member.host.lstrip('/')}" for member in found.members)
    )
    raise ActiveGroup(
        f"group {group!r} is active ({clients or _state(found)}): its members would not notice.\n"
        "Stop them, wait until `headrace group describe` says empty, and repeat the command."
    )


def _describe(session: Session, group: str) -> Any:
    return session.ask_about("describe_consumer_groups", group, f"describe group {group!r}")


def _lags(
    session: Session, committed: Mapping[Partition, int], owners: Mapping[Partition, str]
) -> tuple[PartitionLag, ...]:
    partitions = sorted(committed.keys() | owners.keys())
    extents = read_extents(session, partitions)
    return tuple(
        PartitionLag(
            topic=topic,
            partition=number,
            committed=committed.get((topic, number)),
            start=extent.start,
            end=extent.end,
            # Records that retention has removed are not left to read.
            lag=max(0, extent.end - max(committed.get((topic, number), 0), extent.start)),
            member=owners.get((topic, number)),
        )
        for topic, number in partitions
        for extent in [extents[topic, number]]
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
