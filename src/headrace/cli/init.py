"""`headrace init`: creates a new project."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.output import print_line
from headrace.errors import Misuse
from headrace.streams.declarations import checked_name

FILES: Final = ("README.md", "headrace.toml", "pipeline.py", "test_pipeline.py", "traffic.py")
PLACEHOLDER: Final = "NAME"


def init(
    name: Annotated[str, typer.Argument(help="Name of the application.")],
    into: Annotated[
        Path | None, typer.Option(help="Directory of the project (default: the name of the application).")
    ] = None,
) -> None:
    """Create a project: a pipeline with three jobs, a traffic generator, tests and settings.

    Existing files are not overwritten.

    Example: headrace init shop
    """
    checked_name(name, "application")
    folder = into or Path(name)
    there = [file for file in FILES if (folder / file).exists()]
    if there:
        raise Misuse(
            f"{folder / there[0]} exists already: choose another folder with --into, or move the file away."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        text = files("headrace.demo").joinpath("starter", file).read_text(encoding="utf-8")
        (folder / file).write_text(text.replace(PLACEHOLDER, name), encoding="utf-8")
    print_line(f"created {', '.join(FILES)} in {folder}")
    go_there = "" if folder == Path() else f"cd {folder} && "
    print_line(f"Run it: {go_there}headrace run pipeline.py")
    print_line(f"{folder / 'README.md'} shows what to do next, in a second terminal.")
