"""Tables of a benchmark on the terminal: one per measure, with ratios, and one of the aims."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from bench.aims import TIMES, Verdict
from bench.machine import Facts
from bench.readings import Reading, Readings

COLOURS = {"reached": "green", "missed": "red", "not measured": "yellow"}
BUSY_SHARE = 0.25  # of the cores
WIDTH = 150  # the widest table, also where the output is not a terminal


def make_console() -> Console:
    """A console on standard output, as wide as our tables need where nothing says otherwise."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def make_progress() -> Console:
    """A console on standard error for lines that say how far a run is, each with the time."""
    console = Console(stderr=True, highlight=False, log_path=False)
    return console if console.is_terminal else Console(file=console.file, log_path=False, width=WIDTH)


def warn_when_busy(progress: Console, machine: Facts) -> None:
    """Say so when others keep this machine busy."""
    load, cores = float(machine["load_at_start"]), int(machine["cores"])
    if load > BUSY_SHARE * cores:
        progress.log(f"This machine is busy (load {load} on {cores} cores): the figures will mislead.")


def print_readings(console: Console, readings: Readings, systems: Mapping[str, str], base: str) -> None:
    """Print each measure as a table; `systems` maps names to titles, `base` is what ratios divide by."""
    for measure, rows in readings.rows():
        table = Table(title=measure, title_justify="left", title_style="bold", header_style="")
        table.add_column("", no_wrap=True)
        table.add_column("unit", no_wrap=True)
        for title in systems.values():
            table.add_column(title, justify="right", no_wrap=True)
        for cell, unit in rows:
            base_reading = readings.find(measure, cell, unit, base)
            found = [readings.find(measure, cell, unit, name) for name in systems]
            table.add_row(cell, unit, *(_figure(reading, base_reading) for reading in found))
        console.print(table)


def print_verdicts(console: Console, verdicts: Iterable[Verdict]) -> None:
    """Print which aims were reached."""
    table = Table(title="aims", title_justify="left", title_style="bold", header_style="")
    for heading in ("", "row", "unit", "aim", "figure", "verdict"):
        table.add_column(heading, no_wrap=True)
    for verdict in verdicts:
        aim, colour = verdict.aim, COLOURS[verdict.word]
        figure = "" if verdict.figure is None else f"{verdict.figure:.3g}{TIMES if aim.against else ''}"
        word = f"[{colour}]{verdict.word}[/]"
        table.add_row(aim.measure, aim.cell, aim.unit, aim.limit, figure, word)
    console.print(table)


def _figure(reading: Reading | None, base: Reading | None) -> str:
    if reading is None:
        return ""
    text = number(reading.median)
    if len(reading.values) > 1:
        text += f" ±{reading.spread:.0%}"
    if base is not None and base.median and base.system != reading.system:
        text += f" ({_ratio(reading.median / base.median)}{TIMES})"
    return text


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}"


def number(value: float) -> str:
    """A figure as people read it: three significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
