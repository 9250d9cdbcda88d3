"""A job: a function of the user's whose rows go to its outputs, batch by batch, each exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from headrace.client.topics import NewTopic
from headrace.errors import Misuse
from headrace.streams.names import checked_name
from headrace.streams.rows import Operators, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.streams.batch_plan import BatchPlan
    from headrace.streams.building import Building
    from headrace.streams.into import Into
    from headrace.streams.late import Late
    from headrace.streams.rows import Mode

Time = Literal["slowest", "fastest"]
OnError = Literal["fail", "dead_letter"]
Result = Any
"""What a job's function returns: a DataFrame, rows or a stream. (Any, so that users need not annotate.)"""
DROP: Final = "drop"
"""Late rows are dropped, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is computed and where it goes. Calling it calls the function: jobs can share their parts."""

    app: str
    name: str
    function: Callable[[], Result]
    into: Into
    mode: Mode | None = None
    """How rows are written; otherwise as the rows ask for it, and appended where they do not."""
    every: str | None = None
    """The time between micro-batches, such as "10 seconds"; otherwise each follows the one before at once."""
    dead: str = ""
    """The topic of rows that do not parse; otherwise `<job>.dead`."""
    dead_limit: float | None = None
    """How many of them stop the job: a number of rows, or below 1 a share of the rows."""
    time: Time = "slowest"
    """Of several streams, the one whose watermark counts."""
    late: Late | None = None
    """What becomes of rows that are late for a window: `drop` (as without it), a topic, or `correct(…)`."""
    on_error: OnError = "fail"
    """Whether a row that the job's own code fails on ends the job, or is a dead letter."""

    def __post_init__(self) -> None:
        checked_name(self.name, "job")
        if self.late_topic is not None:
            checked_name(self.late_topic, "topic")
        if self.dead:
            checked_name(self.dead, "topic")
        if self.mode not in (None, "append", "update", "complete"):
            raise Misuse(
                f"job {self.name!r}: mode {self.mode!r} is not known: use append, update or complete."
            )
        if self.time not in get_args(Time):
            raise Misuse(f"job {self.name!r}: time {self.time!r} is not known: use slowest or fastest.")
        if self.on_error not in get_args(OnError):
            raise Misuse(
                f"job {self.name!r}: on_error {self.on_error!r} is not known: use fail or dead_letter."
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
    def late_topic(self) -> str | None:
        """Where rows go that are late for a window; None if they are dropped."""
        topic = self.late if isinstance(self.late, str) or self.late is None else self.late.beyond
        return None if topic == DROP else topic

    @property
    def place(self) -> str:
        """Where the function is: "pipeline.py, line 12, in revenue"."""
        code = getattr(self.function, "__code__", None)  # a callable object has none
        if code is None:
            return f"job {self.name}"
        return f"{Path(code.co_filename).name}, line {code.co_firstlineno}, in {code.co_name}"

    @property
    def purpose(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def build(self, building: Building) -> Rows:
        """The rows that the function returns."""
        from pyspark.sql import DataFrame

        self._say_what_is_late(building.plan)
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
        if building.plan.late is not None and not building.plan.windows:
            raise Misuse(f"job {self.name!r} has late={self.late!r}, but no window that rows are late for.")
        self._check_key(rows)
        mode = self.mode or rows.mode or self.into.mode_for(rows.frame)
        return replace(rows, mode=mode, every=self.every or rows.every)

    def _check_key(self, rows: Rows) -> None:
        for view in self.into.views:
            if rows.key and set(view.key) != set(rows.key):
                raise Misuse(
                    f"job {self.name!r}: its rows replace one another by {', '.join(rows.key)}, and the view "
                    f"{view.name!r} has the key {', '.join(view.key)}: give the view the same key."
                )

    def _say_what_is_late(self, plan: BatchPlan) -> None:
        plan.late = None if self.late == DROP else self.late
        if self.late is not None and not isinstance(self.late, str):
            plan.patience_ms = self.late.within_ms
        if self.late_topic is not None:
            plan.write_to(NewTopic(name=self.late_topic, partitions=1))
