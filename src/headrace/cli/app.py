"""The command tree of `headrace`: groups such as `headrace topic`, and frequent commands at the top level."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import (
    acl,
    backup,
    capture,
    console,
    consume,
    dead,
    doctor,
    events,
    gateway,
    group,
    job,
    produce,
    project,
    query,
    queue,
    quota,
    topic,
    txn,
    user,
)
from headrace.cli.main import run_broker
from headrace.cli.output import CommandGroup, print_line

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Headrace: a Kafka-compatible broker, and stream processing on Spark. "
    "Every command also works with Apache Kafka.",
)
app.add_typer(topic.commands, name="topic")
app.add_typer(group.commands, name="group")
app.add_typer(queue.commands, name="queue")
app.add_typer(txn.commands, name="txn")
app.add_typer(user.commands, name="user")
app.add_typer(acl.commands, name="acl")
app.add_typer(quota.commands, name="quota")
app.add_typer(backup.commands, name="backup")
app.add_typer(job.commands, name="job")
app.add_typer(query.commands, name="view")
app.add_typer(dead.commands, name="dead")
app.add_typer(capture.commands, name="capture")
app.add_typer(events.commands, name="events")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("changes")(query.changes)
app.command("query")(query.query)
app.command("search")(query.search)
app.command("gateway")(gateway.gateway)
app.command("console")(console.console)
app.command("run")(project.run)
app.command("explain")(project.explain)
app.command("state")(job.state)
app.command("restore")(backup.restore)
app.command("doctor")(doctor.doctor)
app.command("demo")(project.demo)
app.command("init")(project.init)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_line(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Declare the options that all commands share."""


# `main` runs the broker without this command tree. It is declared here so that `headrace --help` lists it.
@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def broker(ctx: typer.Context) -> None:
    """Run a broker until Ctrl-C.

    `headrace broker init` creates its first user.

    Example: headrace broker --data ./log
    """
    raise typer.Exit(run_broker(ctx.args))
