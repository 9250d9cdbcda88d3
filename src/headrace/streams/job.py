"""A job: a function of the user's whose rows go to a topic, batch by batch, each exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import Misuse
from headrace.streams.names import checked_name
from headrace.streams.rows import Operators, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.streams.building import Building
    from headrace.streams.rows import Mode
    from headrace.streams.topic import Topic

Result = Any
"""What a job's function returns: a DataFrame, rows or a stream. (Any, so that users need not annotate.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is computed and where it goes. Calling it calls the function: jobs can share their parts."""

    app: str
    name: str
    function: Callable[[], Result]
    into: Topic
    mode: Mode | None = None
    """How rows are written; otherwise as the rows ask for it, and appended where they do not."""
    every: str | None = None
    """The time between micro-batches, such as "10 seconds"; otherwise each follows the one before at once."""
    dead: str = ""
    """The topic of rows that do not parse; otherwise `<job>.dead`."""
    dead_limit: float | None = None
    """How many of them stop the job: a number of rows, or below 1 a share of the rows."""

    def __post_init__(self) -> None:
        checked_name(self.name, "job")
        if self.dead:
            checked_name(self.dead, "topic")
        if self.mode not in (None, "append", "update", "complete"):
            raise Misuse(
                f"job {self.name!r}: mode {self.mode!r} is not known: use append, update or complete."
            )
        if self.dead_limit is not None and self.dead_limit < 0:
            raise Misuse(
                f"job {self.name!r}: dead_limit is a number of rows, or a share of them such as 0.01."
            )

    def __call__(self) -> Result:
        """What the function returns."""
        return self.function()

    @property
    def full_name(self) -> str:
        """The name that is unique among applications: of the query, its consumer group, and its marks."""
        return f"{self.app}.{self.name}"

    @property
    def dead_topic(self) -> str:
        """Where rows go that do not parse."""
        return self.dead or f"{self.name}.dead"

    @property
    def purpose(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def build(self, building: Building) -> Rows:
        """The rows that the function returns."""
        from pyspark.sql import DataFrame

        with building.active():
            result = self.function()
            rows = result.rows if isinstance(result, Operators) else result
        if isinstance(rows, DataFrame):
            rows = Rows(frame=rows)
        if not isinstance(rows, Rows):
            raise Misuse(
                f"job {self.name!r} returned {type(rows).__name__}: its function has to return a DataFrame, "
                "rows or a stream."
            )
        if not rows.frame.isStreaming:
            raise Misuse(
                f"job {self.name!r} returned a DataFrame that does not come from a stream: begin with `.df` "
                "of an `app.stream(…)`."
            )
        return replace(rows, mode=self.mode or rows.mode or "append", every=self.every or rows.every)
