"""`headrace view` and `headrace changes`: views of jobs, their rows and their changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_view
from headrace.cli.output import note, print_json, print_table
from headrace.cli.session import connect
from headrace.cli.termination import terminated_like_interrupt
from headrace.errors import Misuse
from headrace.printable import printable

if TYPE_CHECKING:
    from headrace.feeds.feed import Change

commands = typer.Typer(no_args_is_help=True, help="List the materialized views of jobs.")


# Without a callback, typer would replace a group with a single command by that command.
@commands.callback()
def view() -> None:
    """List the materialized views of jobs."""


@commands.command("list")
def list_(*, broker: options.Broker = None, as_json: options.Json = False) -> None:
    """List the views, with their keys and columns and the jobs that fill them.

    Example: headrace view list
    """
    from headrace.feeds.catalog import read_views

    with connect(broker) as session:
        views = read_views(session.cluster).values()
    if as_json:
        print_json(list(views))
        return
    rows = [(entry.name, entry.key, ", ".join(entry.columns), entry.job) for entry in views]
    print_table(["view", "key", "columns", "job"], rows)


def changes(
    *,
    view: Annotated[
        str | None, typer.Argument(metavar="VIEW", help="Name of the view.", autocompletion=complete_view)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the changes until Ctrl-C.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TOKEN", help="Resume after the change with this token."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print changes as JSON, one per line, with their tokens.")
    ] = False,
    broker: options.Broker = None,
) -> None:
    """Print the rows of a view, and with --follow every later change.

    `headrace gateway` serves the changes to browsers and other HTTP clients.

    Example: headrace changes revenue --follow
    """
    if view is None:
        raise Misuse("name a view, such as `headrace changes revenue`; `headrace view list` shows them.")
    _print(view, broker, since=since, follow=follow, as_json=as_json)


def _print(view: str, broker: str | None, *, since: str | None, follow: bool, as_json: bool) -> None:
    from headrace.feeds.feed import ChangeFeed

    with (
        connect(broker) as session,
        terminated_like_interrupt(),
        ChangeFeed(view, str(session.address), since=since, follow=follow) as feed,
    ):
        printed = 0
        for batch in feed.batches():
            printed += len(batch)
            lines = "".join(_json_line(change) if as_json else _line(change) for change in batch)
            sys.stdout.write(printable(lines) if sys.stdout.isatty() else lines)
            sys.stdout.flush()
        if not printed:
            what = "rows" if since is None else "changes after that token"
            note(f"the view {view} has no {what} yet; --follow waits for them")


def _json_line(change: Change) -> str:
    return f'{change.to_json()[:-1]},"token":"{change.token}"}}\n'


def _line(change: Change) -> str:
    """The kind of change and the row as JSON; for a delete, the key."""
    if change.value is not None:
        return f"{change.kind:<6} {change.row_json()}\n"
    return f"{change.kind:<6} {change.key_json()}\n"
