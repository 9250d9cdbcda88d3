"""`headrace capture`: change data capture from a database."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import Progress, confirm, note, print_json, print_line, print_table, size_text
from headrace.errors import Misuse
from headrace.logs import configure_logging
from headrace.settings import Settings
from headrace.tracing import open_tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.capture.settings import CaptureSettings
    from headrace.metrics.address import MetricsAddress
    from headrace.tracing import Tracer


class CaptureDisplay:
    """A progress bar for the snapshot of each table, and lines for messages."""

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
        """Show the progress of a table's snapshot, and print a line when it is complete."""
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
    """Inside the block, Ctrl-C and SIGTERM call `stop`; a second signal ends the command at once."""
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
    """Treats `headrace capture URL …` as `headrace capture start URL …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command before a URL."""
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
    typer.Option(
        "--url",
        help="URL of the database; by default HEADRACE_CAPTURE, or url under [capture] in headrace.toml.",
    ),
]


@commands.command()
def start(
    *,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="URL of the database: postgres://user@host:port/database; by default HEADRACE_CAPTURE, or "
            "url under [capture] in headrace.toml. Keep the password there, in PGPASSWORD, or in ~/.pgpass.",
            show_default=False,
        ),
    ] = None,
    tables: Annotated[
        str,
        typer.Option(
            "--tables", metavar="TABLES", help="Tables as schema.table, separated by commas; * is a wildcard."
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option("--name", help="Name of the capture and prefix of its topics; by default the database."),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            "--columns", help="Capture only these columns, as schema.table.column, separated by commas."
        ),
    ] = "",
    mask: Annotated[
        str, typer.Option("--mask", help="Columns whose values are replaced by ****, separated by commas.")
    ] = "",
    hash_: Annotated[
        str,
        typer.Option(
            "--hash", help="Columns whose values are replaced by their SHA-256, separated by commas."
        ),
    ] = "",
    salt_file: Annotated[
        Path | None,
        typer.Option(
            "--salt-file",
            exists=True,
            dir_okay=False,
            help="File whose first line is the salt of --hash; by default HEADRACE_SALT.",
        ),
    ] = None,
    outbox: Annotated[
        str,
        typer.Option(
            "--outbox", metavar="TABLE", help="Outbox table, whose rows name the topic to which they go."
        ),
    ] = "",
    partitions: Annotated[
        int, typer.Option("--partitions", help="Number of partitions of topics that the capture creates.")
    ] = 1,
    warn_mb: Annotated[
        int,
        typer.Option(
            "--warn-mb", help="Warn when the replication slot retains more than this much WAL (MB)."
        ),
    ] = 1024,
    stop_mb: Annotated[
        int,
        typer.Option(
            "--stop-mb",
            help="Drop the replication slot when it retains more than this much WAL (MB); 0 for never.",
        ),
    ] = 16 * 1024,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when everything that is committed now is captured.")
    ] = False,
    broker: options.Broker = None,
    metrics: options.Metrics = None,
    metrics_allow_remote: options.MetricsAllowRemote = False,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
) -> None:
    """Capture tables: take a snapshot, then stream every change until Ctrl-C.

    Each table has a topic NAME.SCHEMA.TABLE of events in Debezium's envelope. A capture that is started again
    continues at its offset.

    Example: headrace capture postgres://app@127.0.0.1/shop --tables public.users,public.orders
    """
    from headrace.capture.settings import CaptureSettings

    configured = Settings.read()
    configure_logging(*configured.log(log_level, log_format))
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
    address = configured.metrics("capture", metrics, allow_remote=metrics_allow_remote)
    tracer = open_tracer("headrace-capture", configured.tracing())
    _run(settings, _bootstrap(broker), address, tracer)


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
    """Show the position of a capture, its tables, and the WAL that its slot retains.

    Example: headrace capture status shop
    """
    from headrace.capture.registry import capture_status, find_capture

    found = capture_status(find_capture(_bootstrap(broker), name), _configured(url))
    if as_json:
        print_json(found)
        return
    running = {True: "running", False: "not running", None: "unknown"}[found.is_running]
    print_line(f"capture   {found.name} of {found.database}: {running}")
    print_line(f"position  {found.position}")
    print_line(f"slot      {found.slot}{', whose WAL is lost' if found.is_lost else ''}")
    print_line(
        f"WAL       {size_text(found.retained_wal_bytes) or '-'} retained, "
        f"{size_text(found.lag_bytes) or '-'} behind"
    )
    for table, topic in found.tables.items():
        print_line(f"table     {table} in {topic}")
    if found.problem:
        note(found.problem)


@commands.command()
def stop(*, name: Name, url: Url = None, broker: options.Broker = None) -> None:
    """Stop a capture, wherever it runs; it continues when it is started again.

    Example: headrace capture stop shop
    """
    from headrace.capture.registry import find_capture, stop_capture

    bootstrap = _bootstrap(broker)
    ran = stop_capture(bootstrap, find_capture(bootstrap, name), _configured(url))
    print_line(f"capture {name} {'stopped' if ran else 'was not running'}")


@commands.command()
def drop(
    *,
    name: Name,
    url: Url = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Only delete the offset of the capture, if its database does not exist any more."
        ),
    ] = False,
    broker: options.Broker = None,
    yes: options.Yes = False,
) -> None:
    """Drop the slot and publication of a capture, and delete its offset. Its topics are kept.

    Started again, it takes a new snapshot and corrects its topics.

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


def _run(
    settings: CaptureSettings, bootstrap: str, metrics: MetricsAddress | None, tracer: Tracer | None
) -> None:
    from headrace.capture.capture import Capture

    with CaptureDisplay() as display, ExitStack() as stack:
        capture = Capture(
            settings, bootstrap, on_message=display.tell, on_progress=display.report, tracer=tracer
        )
        if metrics is not None:
            from headrace.capture.metrics import CaptureMetricsSource
            from headrace.metrics.server import MetricsServer

            server = stack.enter_context(MetricsServer(metrics, CaptureMetricsSource(capture.metrics)))
            note(f"metrics are served on http://{server.address}/metrics")
        gc.freeze()  # keep loaded modules out of collections, which would delay changes
        with stopping_by_signals(capture.stop):
            capture.run()
    note(f"captured {capture.records:,} records")


def _bootstrap(option: str | None) -> str:
    from headrace.cli.session import broker_address

    return str(broker_address(option))


def _configured(url: str | None) -> str | None:
    """The URL of the database; warns if the command line contains a password."""
    if url is not None and urlsplit(url).password:
        note(
            "every user of this machine can read the password of the URL in the process list: put the URL "
            "into HEADRACE_CAPTURE or headrace.toml, or the password into ~/.pgpass."
        )
    return Settings.read().url("capture", url)


def _start_url(url: str | None) -> str:
    configured = _configured(url)
    if configured is None:
        raise Misuse(
            "no database is given: pass its URL (postgres://user@host:port/database), or set "
            "HEADRACE_CAPTURE in the environment, or url under [capture] in headrace.toml."
        )
    return configured


def _salt(file: Path | None) -> str:
    if file is None:
        return os.environ.get("HEADRACE_SALT", "")
    return file.read_text(encoding="utf-8").partition("\n")[0]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
