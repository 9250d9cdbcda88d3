"""`headrace capture`: change data capture from a database."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import Progress, confirm, note, print_json, print_line, print_table, size_text
from headrace.errors import Misuse
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.capture.settings import CaptureSettings


class CaptureDisplay:
    """A progress bar for each table of a snapshot, and lines for all else."""

    def __init__(self) -> None:
        self._table = ""
        self._rows = 0
        self._bar: Progress | None = None

    def tell(self, text: str) -> None:
        """Print a line."""
        self._close()
        print_line(text)
        sys.stdout.flush()

    def report(self, table: str, rows: int, total: int) -> None:
        """Show how many rows of a table were read; when it is all, say so."""
        if table != self._table:
            self._close()
            self._table, self._rows = table, 0
            self._bar = Progress(f"of {table} read", total=total or None)
        if self._bar is not None:
            self._bar.advance(rows - self._rows, rows - self._rows)
        self._rows = rows
        if rows == total:
            self.tell(f"snapshot of {table}: {rows:,} rows")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


@contextmanager
def stopping_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """A block in which Ctrl-C and SIGTERM ask for a clean end; the second time it ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        stop()
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


MIB = 1 << 20


class CaptureGroup(TyperGroup):
    """Takes `headrace capture URL …` for `headrace capture start URL …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the verb in front of an address."""
        if args and "://" in args[0]:
            args = ["start", *args]
        return super().parse_args(ctx, args)


commands = typer.Typer(
    cls=CaptureGroup,
    no_args_is_help=True,
    help="Change data capture: `headrace capture postgres://user@host/shop --tables public.users`.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the capture.")]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Address of the database; else HEADRACE_CAPTURE, or headrace.toml."),
]


@commands.command()
def start(
    *,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="The database: postgres://user@host:port/database; else HEADRACE_CAPTURE, or headrace.toml. "
            "Keep the password there, in PGPASSWORD, or in ~/.pgpass.",
            show_default=False,
        ),
    ] = None,
    tables: Annotated[
        str,
        typer.Option(
            "--tables", metavar="TABLES", help="As schema.table, with commas between; * is anything."
        ),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="What the capture and its topics are called; else as the database.")
    ] = "",
    columns: Annotated[
        str, typer.Option("--columns", help="Only these, as schema.table.column, with commas between.")
    ] = "",
    mask: Annotated[str, typer.Option("--mask", help="Columns whose values are replaced by ****.")] = "",
    hash_: Annotated[str, typer.Option("--hash", help="Columns whose values are replaced by SHA-256.")] = "",
    salt_file: Annotated[
        Path | None,
        typer.Option(
            "--salt-file",
            exists=True,
            dir_okay=False,
            help="File whose first line is hashed before each value; else HEADRACE_SALT.",
        ),
    ] = None,
    outbox: Annotated[
        str, typer.Option("--outbox", metavar="TABLE", help="Rows of this table name the topic they go to.")
    ] = "",
    partitions: Annotated[int, typer.Option("--partitions", help="Of each topic that is made.")] = 1,
    warn_mb: Annotated[
        int, typer.Option("--warn-mb", help="Say it when the database holds so much log for the capture.")
    ] = 1024,
    stop_mb: Annotated[
        int, typer.Option("--stop-mb", help="Drop the slot when it is so much, to save the disk; 0: never.")
    ] = 16 * 1024,
    once: Annotated[
        bool, typer.Option("--once", help="Leave when all that is committed now is captured.")
    ] = False,
    broker: options.Broker = None,
) -> None:
    """Capture tables: a snapshot, and then every change, until Ctrl-C.

    Each table becomes a topic, NAME.SCHEMA.TABLE, of events in Debezium's envelope. It goes on where it was
    when it is started again.

    Example: headrace capture postgres://app@127.0.0.1/shop --tables public.users,public.orders
    """
    from headrace.capture.settings import CaptureSettings

    settings = CaptureSettings(
        url=_start_url(url),
        tables=_listed(tables),
        name=name,
        columns=_listed(columns),
        mask=_listed(mask),
        hash=_listed(hash_),
        salt=_salt(salt_file),
        outbox=outbox,
        partitions=partitions,
        warn_bytes=warn_mb * MIB,
        stop_bytes=stop_mb * MIB,
        once=once,
    )
    _run(settings, _bootstrap(broker))


@commands.command("list")
def list_(*, broker: options.Broker = None, as_json: options.Json = False) -> None:
    """List the captures that have run on this broker.

    Example: headrace capture list
    """
    from headrace.capture.registry import list_captures

    found = list_captures(_bootstrap(broker))
    if as_json:
        print_json(
            [{"name": each.name, "database": each.address, "tables": list(each.tables)} for each in found]
        )
        return
    print_table(
        ["name", "database", "tables"], [(each.name, each.address, tuple(each.tables)) for each in found]
    )


@commands.command()
def status(
    *, name: Name, url: Url = None, broker: options.Broker = None, as_json: options.Json = False
) -> None:
    """Show how far a capture is, and how much log its database holds for it.

    Example: headrace capture status shop
    """
    from headrace.capture.registry import find_capture, status_of

    found = status_of(find_capture(_bootstrap(broker), name), _configured(url))
    if as_json:
        print_json(found)
        return
    running = {True: "running", False: "not running", None: "unknown"}[found.is_running]
    print_line(f"capture   {found.name} of {found.database}: {running}")
    print_line(f"position  {found.position}")
    print_line(f"slot      {found.slot}{', whose log is lost' if found.is_lost else ''}")
    print_line(
        f"WAL held  {size_text(found.wal_held_bytes) or '-'}, {size_text(found.lag_bytes) or '-'} behind"
    )
    for table, topic in found.tables.items():
        print_line(f"table     {table} in {topic}")
    if found.problem:
        note(found.problem)


@commands.command()
def stop(*, name: Name, url: Url = None, broker: options.Broker = None) -> None:
    """Have a capture end, wherever it runs; started again, it goes on.

    Example: headrace capture stop shop
    """
    from headrace.capture.registry import find_capture, stop_capture

    bootstrap = _bootstrap(broker)
    ran = stop_capture(bootstrap, find_capture(bootstrap, name), _configured(url))
    print_line(f"capture {name} {'stopped' if ran else 'did not run'}")


@commands.command()
def drop(
    *,
    name: Name,
    url: Url = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="The database is gone: only forget the capture.")
    ] = False,
    broker: options.Broker = None,
    yes: options.Yes = False,
) -> None:
    """Drop a capture's slot and publication, and forget how far it was. Topics stay.

    Started again, it takes a new snapshot, and corrects what its topics hold.

    Example: headrace capture drop shop --yes
    """
    from headrace.capture.registry import drop_capture, find_capture, forget_capture

    bootstrap = _bootstrap(broker)
    progress = find_capture(bootstrap, name)
    confirm(f"Drop the slot {progress.slot} in {progress.address}?", yes=yes)
    if forget:
        forget_capture(bootstrap, name)
    else:
        drop_capture(bootstrap, progress, _configured(url))
    print_line(f"capture {name} dropped")


def _run(settings: CaptureSettings, bootstrap: str) -> None:
    from headrace.capture.capture import Capture

    with CaptureDisplay() as display:
        capture = Capture(settings, bootstrap, tell=display.tell, report=display.report)
        gc.freeze()  # what is loaded stays: looking through it again and again would hold up changes
        with stopping_by_signals(capture.stop):
            capture.run()
    note(f"captured {capture.records:,} records")


def _bootstrap(option: str | None) -> str:
    from headrace.cli.session import broker_address

    return str(broker_address(option))


def _configured(url: str | None) -> str | None:
    """The address of the database, as given or configured; warns of a password in the list of processes."""
    if url is not None and urlsplit(url).password:
        note(
            "the password in the address can be read by every user of this machine in the list of processes: "
            "put the address into HEADRACE_CAPTURE or headrace.toml, or the password into ~/.pgpass."
        )
    return Settings.read().url("capture", url)


def _start_url(url: str | None) -> str:
    configured = _configured(url)
    if configured is None:
        raise Misuse(
            "no database is named: write its address (postgres://user@host:port/database), or set "
            "HEADRACE_CAPTURE in the environment, or url under [capture] in headrace.toml."
        )
    return configured


def _salt(file: Path | None) -> str:
    if file is None:
        return os.environ.get("HEADRACE_SALT", "")
    return file.read_text(encoding="utf-8").partition("\n")[0]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
