"""The acts of the demo, one after the other; those that use Spark share one session."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

SHARE_OF_DERIVED: Final = 0.4
"""Of the seconds, where both acts of Spark are played."""


MORE: Final = (
    "\nWhere to look next: docs/jobs.md, docs/derived.md, `headrace demo --act log`, `headrace --help`."
)


class Act(StrEnum):
    """What is shown."""

    ALL = "all"
    JOBS = "jobs"
    DERIVED = "derived"
    LOG = "log"


def play(act: Act, console: Console, seconds: float) -> bool:
    """Play an act, or both of Spark's; whether all checks held."""
    if act is Act.LOG:
        from headrace.demo.show import Show

        return Show(console, seconds).run()
    from headrace.demo.derived_show import DerivedShow
    from headrace.demo.jobs_show import JobsShow

    with ExitStack() as stack:
        shows: list[JobsShow | DerivedShow] = []
        if act is not Act.DERIVED:
            shows.append(JobsShow(console, seconds * (1 - SHARE_OF_DERIVED if act is Act.ALL else 1), stack))
        if act is not Act.JOBS:
            shows.append(DerivedShow(console, seconds * (SHARE_OF_DERIVED if act is Act.ALL else 1)))
        held = all(show.run() for show in shows)
    console.print(MORE, highlight=False)
    return held
