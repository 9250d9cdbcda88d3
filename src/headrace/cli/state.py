"""`headrace state`: what the operators of a job keep."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.job import Name, State, state_folder
from headrace.cli.output import note, print_json, print_table, size_text
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterator


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
