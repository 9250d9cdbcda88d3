"""`headrace view` and `headrace changes`: views of jobs, their rows and their changes."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_view
from headrace.cli.output import note, print_json, print_line, print_table
from headrace.cli.session import connect
from headrace.cli.termination import terminated_like_interrupt
from headrace.errors import Misuse
from headrace.printable import printable

if TYPE_CHECKING:
    from headrace.cli.session import BrokerSession
    from headrace.feeds.feed import Change
    from headrace.feeds.server import ServerOptions

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
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="[HOST:]PORT", help="Serve the changes over HTTP as server-sent events."
        ),
    ] = None,
    remote: Annotated[
        bool,
        typer.Option("--remote", help="With --http: allow an address that other machines can reach."),
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="URL", help="With --http: allow web pages of this origin (CORS); repeatable."
        ),
    ] = None,
    broker: options.Broker = None,
) -> None:
    """Print the rows of a view, and with --follow every later change.

    With --http, the changes of this view, or of all views, are served at /changes/VIEW to browsers
    (EventSource) and other HTTP clients. There is no authentication: only clients on this machine are served
    unless --remote is given.

    Example: headrace changes revenue --follow
    """
    if http is not None:
        if follow or since or as_json:
            raise Misuse(
                "--http cannot be combined with --follow, --since or --json: clients choose their position."
            )
        _serve(http, view, broker, remote=remote, origins=tuple(origin or ()))
    elif view is None:
        raise Misuse("name a view, such as `headrace changes revenue`; `headrace view list` shows them.")
    else:
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


def _serve(
    where: str, view: str | None, broker: str | None, *, remote: bool, origins: tuple[str, ...]
) -> None:
    import asyncio

    from headrace.feeds.server import ServerOptions, is_loopback

    host, port = _read_address(where)
    if not is_loopback(host) and not remote:
        raise Misuse(
            f"{host} can be reached by other machines, and there is no authentication: add --remote "
            "to allow it, or leave out the host."
        )
    with connect(broker) as session:
        _check_view(session, view)
        offer = ServerOptions(broker=str(session.address), view=view, origins=origins, any_host=remote)
        asyncio.run(_serve_until_stopped(offer, host, port))


async def _serve_until_stopped(offer: ServerOptions, host: str, port: int) -> None:
    import asyncio

    from headrace.feeds.server import ChangeServer

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = ChangeServer(offer)
    try:
        port = await server.start(host, port)
    except OSError as fault:
        raise Misuse(f"nothing can listen on {host}:{port}: {fault.strerror}.") from fault
    print_line(f"serving changes on http://{host}:{port}/changes/{offer.view or 'VIEW'}")
    sys.stdout.flush()
    await stopped.wait()
    note(f"hanging up on {server.clients} clients")
    await server.close()


def _check_view(session: BrokerSession, view: str | None) -> None:
    if view is not None:
        from headrace.feeds.catalog import find_view

        find_view(session.cluster, view)


def _read_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise Misuse(f"--http {text!r} is not [HOST:]PORT, for example --http 8081.")
    return host.strip("[]") or "127.0.0.1", int(port)
