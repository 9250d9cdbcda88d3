"""`headrace queue`: lists and describes queues, and shows or redrives their dead letters."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_topic
from headrace.cli.output import confirm, note, print_json, print_line, print_table
from headrace.cli.session import connect

if TYPE_CHECKING:
    from headrace.cli.queue_admin import QueueDeadLetter, QueueDetails

commands = typer.Typer(
    no_args_is_help=True,
    help="List and describe queues (share groups), and show or redrive their dead letters.",
)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the share group.")]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Topic, if the group reads several.",
        autocompletion=complete_topic,
    ),
]


@commands.command("list")
def list_(as_json: options.Json = False, broker: options.Broker = None) -> None:
    """List the queues: each share group with its topics and backlog.

    Example: headrace queue list
    """
    from headrace.cli.queue_admin import list_queues

    with connect(broker) as session:
        found = list_queues(session)
    if as_json:
        print_json(found)
    elif not found:
        note('there are no queues; `for message in queue("orders", group="mailer")` creates one')
    else:
        print_table(
            ["group", "topic", "state", "members", "left", "dead"],
            [(each.group, each.topic, each.state, each.members, each.left, each.dead) for each in found],
        )


@commands.command()
def describe(group: Group, as_json: options.Json = False, broker: options.Broker = None) -> None:
    """Show the members, progress and settings of a queue.

    Example: headrace queue describe mailer
    """
    from headrace.cli.queue_admin import describe_queue

    with connect(broker) as session:
        description = describe_queue(session, group)
    if as_json:
        print_json(description)
    else:
        _print_description(description)


@commands.command()
def dead(
    group: Group,
    topic: Topic = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, help="Maximum number of dead letters to show.")
    ] = 20,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Show the dead letters of a queue with the reason, the oldest first.

    Example: headrace queue dead mailer -n 5
    """
    from headrace.cli.queue_admin import choose_topic, count_dead, read_dead, show_letter

    with connect(broker) as session:
        chosen = choose_topic(session, group, topic)
        total = count_dead(session, chosen, group)
        messages = (message for batch in read_dead(session, chosen, group, count) for message in batch)
        letters = [show_letter(message) for message in islice(messages, count)]
    if as_json:
        print_json(letters)
        return
    _print_letters(letters)
    if total > len(letters):
        note(f"{total - len(letters)} more: -n {total} shows all")


@commands.command()
def redrive(
    group: Group,
    topic: Topic = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", "--count", min=1, help="Maximum number of dead letters to redrive (default: all)."
        ),
    ] = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Move dead letters back to their queue, for this share group only, each exactly once.

    Example: headrace queue redrive mailer --yes
    """
    from headrace.cli.queue_admin import choose_topic, count_dead
    from headrace.cli.queue_admin import redrive as move

    with connect(broker) as session:
        chosen = choose_topic(session, group, topic)
        total = count_dead(session, chosen, group)
        wanted = total if count is None else min(count, total)
        if wanted:
            confirm(f"Send {wanted} dead letters of {group} back to {chosen}?", yes=yes)
        moved = sum(move(session, chosen, group, wanted)) if wanted else 0
    if as_json:
        print_json({"topic": chosen, "group": group, "moved": moved, "left": total - moved})
    else:
        print_line(f"{moved} dead letters went back to {chosen}, {total - moved} are left")


def _print_description(description: QueueDetails) -> None:
    left = sum(part.left for part in description.partitions)
    print_line(f"queue {description.group}: {description.state}, {left} left")
    if description.partitions:
        print_line("")
        print_table(
            ["topic", "partition", "start", "left"],
            [(part.topic, part.partition, part.start, part.left) for part in description.partitions],
        )
    if description.members:
        print_line("")
        print_table(
            ["member", "client", "host", "topics"],
            [(each.member, each.client, each.host, each.topics) for each in description.members],
        )
    for title, pairs in (("dead letters", description.dead), ("setting", description.settings)):
        if pairs:
            print_line("")
            print_table([title, ""], list(pairs.items()))


def _print_letters(letters: list[QueueDeadLetter]) -> None:
    if not letters:
        note("there are no dead letters")
        return
    print_table(
        ["offset", "from", "deliveries", "reason", "key", "value"],
        [
            (
                each.offset,
                f"{each.partition}/{each.origin}",
                each.deliveries,
                each.reason,
                each.key,
                each.value,
            )
            for each in letters
        ],
    )
