"""`headrace search`: what a search index finds."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import note, print_json, print_table


def search(
    *,
    index: Annotated[str, typer.Argument(metavar="INDEX", help="Name or path of the index.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help='What to find: "tea AND cup", or * for all.')],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows to print.")] = 10,
    as_json: options.Json = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="State directory (default: HEADRACE_STATE, headrace.toml, or .headrace here).",
        ),
    ] = None,
) -> None:
    """Find rows in a search index that a job keeps, the best first.

    Words are looked for in the index's texts: "tea cup" with either word, "tea AND cup" with both. A column's
    name before a colon looks there: "name:tea", "price:[2 TO 5]", "at:[2026-01-01T00:00:00Z TO *]".

    Example: headrace search products "tea AND cup"
    """
    from headrace.sinks.search import search_index

    opened = search_index(index, state=state)
    hits = opened.find(query, limit=limit)
    total = opened.count(query)
    if as_json:
        print_json(hits)
    else:
        columns = list(dict.fromkeys(name for hit in hits for name in hit.row))
        rows = [[round(hit.score, 3), *(_cell(hit.row.get(name)) for name in columns)] for hit in hits]
        print_table(["score", *columns], rows)
    if total > len(hits):
        note(f"Only the best {len(hits)} of {total} rows are shown; raise --limit to see more.")


def _cell(value: object) -> object:
    if not isinstance(value, dict | list):
        return value
    from headrace.sinks.rows import to_json

    return to_json(value)
