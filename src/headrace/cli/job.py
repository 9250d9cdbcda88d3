"""`headrace job` and `headrace state`: the jobs of a state directory, and the state of their operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import confirm, note, print_json, print_line, print_table, size_text
from headrace.errors import Misuse
from headrace.folders import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.cli.reader import Position
    from headrace.state.inspection import OperatorState
    from headrace.streams.job_folder import JobFolder, StartPosition


commands = typer.Typer(no_args_is_help=True, help="List, describe and reset jobs that have run.")

State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="State directory (default: HEADRACE_STATE, headrace.toml, or .headrace here or below).",
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the job, or APP.JOB if two applications have a job of that name."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListing:
    """A job in a list."""

    app: str
    job: str
    running: bool
    inputs: tuple[str, ...]
    output: str
    checkpoint: int


@commands.command("list")
def list_(*, state: State = None, as_json: options.Json = False) -> None:
    """List the jobs that have run with this state directory.

    Example: headrace job list
    """
    from headrace.streams.job_folder import job_folders

    lines = [_line(folder) for folder in job_folders(state_folder(state))]
    if as_json:
        print_json(lines)
        return
    rows = [(line.app, line.job, "yes" if line.running else "no", line.inputs, line.output) for line in lines]
    print_table(["app", "job", "running", "reads", "writes"], rows)


@commands.command()
def describe(*, job: Name, state: State = None, as_json: options.Json = False) -> None:
    """Show the topics, columns and state that a job's checkpoint depends on.

    Example: headrace job describe revenue
    """
    from headrace.streams.job_folder import find_job

    folder = find_job(state_folder(state), job)
    description = folder.description()
    if as_json:
        shown = None if description is None else description.to_json()
        document = {"app": folder.app, "job": folder.name, "running": folder.is_held, "query": shown}
        print_json({**document, "state": _operators(folder)})
        return
    print_line(f"job {folder.name} of {folder.app}{', running' if folder.is_held else ''}")
    print_line(f"checkpoint  {folder.checkpoint}")
    if description is None:
        print_line(f"begins      {_beginning_text(folder.beginning())}, when it is started next")
        return
    print_line(f"reads       {', '.join(description.inputs)}")
    print_line(f"writes      {description.output} ({description.mode})")
    print_line(f"columns     {description.schema}")
    figures = {kept.operator: _figures_text(kept) for kept in _operators(folder)}
    for name, outline in description.state.items():
        print_line(f"keeps       {name}: {outline}{figures.get(name, '')}")
    for operator in description.operators:
        by = f" by {', '.join(operator.keys)}" if operator.keys else ""
        print_line(f"keeps       {operator.kind}{by}")


@commands.command()
def reset(
    *,
    job: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="New position in all topics: start, end, an offset, a time (2026-01-31T12:00), or -5m.",
        ),
    ],
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Rebuild the job's view in the background, and switch to it when it has caught up.",
        ),
    ] = False,
    state: State = None,
    yes: options.Yes = False,
) -> None:
    """Restart a job with empty state from a position in its topics.

    The old checkpoint is kept. Results that the job has written stay in its topic, so a job that restarts
    from an earlier position writes some of them again. With --rebuild, a job with a view rebuilds it in the
    background, while another process may still run the old version; when the new view has caught up, readers
    switch to it at once.

    Example: headrace job reset revenue --to start --yes
    """
    from headrace.streams.job_folder import find_job

    position = _position(to)
    folder = find_job(state_folder(state), job)
    if rebuild:
        began = folder.beside.reset(kind=position.kind.value, value=position.value)
        print_line(
            f"at its next start, job {folder.name} rebuilds its view: it begins {_beginning_text(began)}"
        )
        return
    confirm(f"Discard the state of {folder.name}, and restart it from {to}?", yes=yes)
    beginning = folder.reset(kind=position.kind.value, value=position.value)
    print_line(f"at its next start, job {folder.name} begins {_beginning_text(beginning)}")


def _operators(folder: JobFolder) -> list[OperatorState]:
    """The state of the job's operators; none if it is not in a folder of this machine."""
    from headrace.state.inspection import list_operators

    location = f"{folder.checkpoint}/operators"
    return [] if local_path(location) is None else list_operators(location)


def _line(folder: JobFolder) -> JobListing:
    description = folder.description()
    return JobListing(
        app=folder.app,
        job=folder.name,
        running=folder.is_held,
        inputs=() if description is None else description.inputs,
        output="" if description is None else description.output,
        checkpoint=folder.beginning().generation,
    )


def state_folder(option: str | None) -> Path:
    """The state directory that `headrace run` uses here, or that of the only project in a subdirectory."""
    from headrace.settings import Settings

    settings = Settings.read()
    folder = settings.state(option)
    if folder.is_dir():
        return folder
    projects = sorted(path for path in settings.folder.iterdir() if path.is_dir())
    states = [Settings.read(project=path).state(option) for path in projects] if option is None else []
    found = sorted({state for state in states if state.is_dir()})
    if len(found) == 1:
        return found[0]
    problem = "several projects here have a state folder" if found else "no job has run here"
    known = f": {', '.join(map(str, found))}" if found else f": {folder} does not exist"
    raise Misuse(f"{problem}{known}. Name the state folder with --state, or go to the pipeline's folder.")


def _position(text: str) -> Position:
    from headrace.cli.reader import read_position

    try:
        return read_position(text)
    except ValueError as fault:
        raise Misuse(str(fault)) from fault


def _beginning_text(beginning: StartPosition) -> str:
    match beginning.kind:
        case "stream":
            return "the start positions of its streams"
        case "start" | "end":
            return f"at the {beginning.kind} of its topics"
        case "offset":
            return f"at offset {beginning.value} of every partition"
        case _:
            moment = datetime.fromtimestamp(beginning.value / 1000, UTC)
            return f"at the records of {moment:%Y-%m-%d %H:%M:%S} UTC"


def _figures_text(kept: OperatorState) -> str:
    size = size_text(kept.byte_size)
    return f" ({kept.rows:,} rows, {size}, {kept.state_ms:.1f} ms in batch {kept.batch})"


def state(
    *,
    job: Name,
    operator: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="Name of an operator, whose rows are shown.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="[COLUMN=]VALUE", help="Show the rows of this key only; once for each column."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Show the state after batch N, not the last.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Show at most N rows.")] = 100,
    state: State = None,
    as_json: options.Json = False,
) -> None:
    """Show the operators of a job that keep state, or the rows that an operator keeps.

    The state of the last two batches can be read, also while the job runs.

    Example: headrace state revenue window-1 --key Oslo
    """
    from headrace.state.inspection import list_operators
    from headrace.streams.job_folder import find_job

    location = f"{find_job(state_folder(state), job).checkpoint}/operators"
    if operator is not None:
        _show_rows(location, operator, key or [], batch, limit, as_json=as_json)
        return
    if key:
        raise Misuse("--key needs an OPERATOR: `headrace state JOB` lists them.")
    operators = list_operators(location, batch)
    if as_json:
        print_json(operators)
        return
    headings = ["operator", "batch", "partitions", "rows", "size", "runs", "ms", "keeps"]
    rows = [
        (
            each.operator,
            each.batch,
            each.partitions,
            each.rows,
            size_text(each.byte_size),
            each.runs,
            round(each.state_ms, 1),
            each.description,
        )
        for each in operators
    ]
    print_table(headings, rows)


def _show_rows(
    location: str, operator: str, key: list[str], batch: int | None, limit: int, *, as_json: bool
) -> None:
    from headrace.state.inspection import checked_batch, find_operator, read_rows
    from headrace.state.operators import read_operator

    place = find_operator(location, operator)
    manifest = read_operator(place)
    wanted = dict(_column_value(text, () if manifest is None else manifest.keys) for text in key)
    tables = read_rows(place, batch=checked_batch(place, batch), key=wanted)
    rows: Iterator[dict[str, Any]] = (row for table in tables for row in table.to_pylist())
    shown = list(islice(rows, limit))
    if as_json:
        print_json(shown, default=str)
        return
    headings = list(shown[0]) if shown else []
    print_table(headings, [[_text(value) for value in row.values()] for row in shown])
    if next(rows, None) is not None:
        note(f"There are more rows than {limit}: set --limit, or choose with --key.")


def _column_value(text: str, keys: tuple[str, ...]) -> tuple[str, str]:
    """The column and the value of an option `--key`; a single key column need not be named."""
    column, sign, value = text.partition("=")
    if sign and (column in keys or len(keys) != 1):
        return column, value
    if len(keys) != 1:
        raise Misuse(f"--key {text!r} names no column: use COLUMN=VALUE with one of {', '.join(keys)}.")
    return keys[0], text


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else str(value)
