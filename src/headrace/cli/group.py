"""`headrace group`: list, describe, seek and delete consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.completion import complete_group, complete_topic
from headrace.cli.failure import Misuse
from headrace.cli.output import confirm, note, print_json, print_line, print_table
from headrace.cli.position import Position, read_position
from headrace.cli.session import connect

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.cli.group_admin import GroupDescription
    from headrace.cli.offsets import Partition
    from headrace.cli.session import Session

commands = typer.Typer(no_args_is_help=True, help="List, describe, seek and delete consumer groups.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where a group is with a partition, and where it is to be."""

    topic: str
    partition: int
    before: int | None
    after: int


@commands.command("list")
def list_(as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List the consumer groups and their states.

    Example: headrace group list
    """
    from headrace.cli import group_admin

    with connect(broker) as session:
        found = group_admin.list_groups(session)
    if as_json:
        print_json(found)
    elif not found:
        note("there are no groups yet: `headrace consume TOPIC --group NAME` makes one")
    else:
        print_table(
            ["group", "state", "type"], [(listing.group, listing.state, listing.type) for listing in found]
        )


@commands.command()
def describe(group: options.Group, as_json: options.Json = False, broker: options.Broker = None) -> None:
    """Show a group's members, its offsets, and how far behind it is.

    Example: headrace group describe billing
    """
    from headrace.cli import group_admin

    with connect(broker) as session:
        description = group_admin.describe_group(session, group)
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
            help="Where to go on reading: -5m is a time ago.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="May be repeated; otherwise all that the group has read.",
            autocompletion=complete_topic,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Move a group that has no members to another place.

    Example: headrace group seek billing --topic orders --to -1h --dry-run
    """
    from headrace.cli import group_admin

    with connect(broker) as session:
        group_admin.require_idle(session, group)
        moves = plan_moves(session, group, to, topics=topic or (), numbers=partition or ())
        if not dry_run:
            after = {(move.topic, move.partition): move.after for move in moves}
            group_admin.write_committed_offsets(session, group, after)
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
    from headrace.cli import group_admin

    with connect(broker) as session:
        for group in groups:
            group_admin.describe_group(session, group)
            group_admin.require_idle(session, group)
        confirm(f"Delete {', '.join(groups)}, with all committed offsets?", yes=yes)
        for group in groups:
            group_admin.delete_group(session, group)
            print_line(f"deleted group {group}")


def plan_moves(
    session: Session, group: str, to: Position, *, topics: Collection[str], numbers: Collection[int]
) -> list[Move]:
    """Where `to` takes the group, partition by partition."""
    from headrace.cli.group_admin import read_committed_offsets
    from headrace.cli.offsets import read_extents, resolve

    committed = read_committed_offsets(session, group)
    partitions = _chosen(session, topics or {topic for topic, _ in committed}, numbers)
    if not partitions:
        raise Misuse(f"group {group!r} has committed no offsets yet: say with --topic what it is to read.")
    after = resolve(session, to, read_extents(session, partitions))
    return [
        Move(topic=topic, partition=number, before=committed.get((topic, number)), after=after[topic, number])
        for topic, number in sorted(partitions)
    ]


def _chosen(session: Session, topics: Collection[str], numbers: Collection[int]) -> list[Partition]:
    from headrace.cli.topic_admin import choose_partitions

    return [(topic, number) for topic in topics for number in choose_partitions(session, topic, numbers)]


def _print_description(description: GroupDescription) -> None:
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
