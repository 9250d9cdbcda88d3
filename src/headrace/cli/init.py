"""The command `headrace init`: a project to begin with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.output import print_line
from headrace.errors import Misuse
from headrace.streams.names import checked_name

FILES: Final = ("README.md", "headrace.toml", "pipeline.py", "test_pipeline.py")
PLACEHOLDER: Final = "NAME"


def init(
    name: Annotated[str, typer.Argument(help="What the application is called.")],
    into: Annotated[
        Path | None, typer.Option(help="The folder; one of the application's name if none.")
    ] = None,
) -> None:
    """Make a project: a pipeline with jobs, an aggregate and a queue, its tests, and its settings.

    Nothing that is there is written over.

    Example: headrace init shop
    """
    checked_name(name, "application")
    folder = into or Path(name)
    there = [file for file in FILES if (folder / file).exists()]
    if there:
        raise Misuse(
            f"{folder / there[0]} is there already: choose another folder by --into, or move it away."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        text = files("headrace.demo").joinpath("starter", file).read_text(encoding="utf-8")
        (folder / file).write_text(text.replace(PLACEHOLDER, name), encoding="utf-8")
    print_line(f"made {', '.join(FILES)} in {folder}")
    print_line(f"Run it with `headrace run {folder / 'pipeline.py'}`, and test it with `pytest {folder}`.")
