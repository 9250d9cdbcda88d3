"""`headrace view`: which views there are."""

from __future__ import annotations

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import print_json, print_table
from headrace.cli.session import connect

commands = typer.Typer(no_args_is_help=True, help="List the views that jobs keep.")


# Without a callback a group that has one command would be that command.
@commands.callback()
def view() -> None:
    """List the views that jobs keep."""


@commands.command("list")
def list_(*, broker: options.Broker = None, as_json: options.Json = False) -> None:
    """List the views, with their keys and columns and the jobs that fill them.

    Example: headrace view list
    """
    from headrace.feeds.catalogue import read_views

    with connect(broker) as session:
        views = read_views(session.cluster).values()
    if as_json:
        print_json(list(views))
        return
    rows = [(entry.name, entry.key, ", ".join(entry.columns), entry.job) for entry in views]
    print_table(["view", "key", "columns", "job"], rows)
