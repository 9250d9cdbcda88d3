"""A job: a function of the user's whose rows go to its outputs, batch by batch, each exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from headrace.client.topics import NewTopic
from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.declarations import checked_name
from headrace.streams.rows import Operators, OutputMode, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from headrace.engine.logical import LogicalPlan
    from headrace.streams.output_targets import OutputTargets

WatermarkPolicy = Literal["min", "max"]
OnError = Literal["fail", "dead_letter"]
Result = Any
"""What a job's function returns: a DataFrame, rows or a stream. (Any, so that users need not annotate.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is computed and where it goes. Calling it calls the function: jobs can share their parts."""

    app: str
    name: str
    function: Callable[[], Result]
    into: OutputTargets
    output_mode: OutputMode | None = None
    """Spark's output mode; otherwise as the rows ask for it, and `append` where they do not."""
    trigger_interval: str | None = None
    """The time between micro-batches, such as "10 seconds"; otherwise each follows the one before at once."""
    dead_letter_topic: str | None = None
    """The topic of dead letters; otherwise `<job>.dead`."""
    max_dead_letters: int | None = None
    """How many dead letters of a run the job accepts."""
    max_dead_letter_ratio: float | None = None
    """Which share of the rows of a run may be dead letters."""
    watermark_policy: WatermarkPolicy = "min"
    """Whether the slowest or the fastest of several streams decides the watermark."""
    late_topic: str | None = None
    """The topic of rows that are late for a window; otherwise they are dropped and counted."""
    allowed_lateness: str | None = None
    """For how long after its result late rows correct a window."""
    on_error: OnError = "fail"
    """Whether a row that the job's own code fails on ends the job, or is a dead letter."""

    def __post_init__(self) -> None:
        checked_name(self.name, "job")
        for topic in (self.late_topic, self.dead_letter_topic):
            if topic is not None:
                checked_name(topic, "topic")
        choices = {"output_mode": OutputMode, "watermark_policy": WatermarkPolicy, "on_error": OnError}
        for name, choice in choices.items():
            if getattr(self, name) not in (*get_args(choice), *([None] if name == "output_mode" else [])):
                raise Misuse(
                    f"job {self.name!r}: {name} {getattr(self, name)!r} is not known: use "
                    f"{', '.join(get_args(choice))}."
                )
        if self.max_dead_letters is not None and self.max_dead_letters < 0:
            raise Misuse(f"job {self.name!r}: max_dead_letters is a number of rows, 0 or more.")
        if self.max_dead_letter_ratio is not None and not 0 <= self.max_dead_letter_ratio <= 1:
            raise Misuse(f"job {self.name!r}: max_dead_letter_ratio is a share of the rows, such as 0.01.")
        for name in ("trigger_interval", "allowed_lateness"):
            if getattr(self, name) is not None:
                milliseconds_of(getattr(self, name), f"job {self.name!r}: {name}")

    def __call__(self) -> Result:
        """What the function returns."""
        return self.function()

    @property
    def full_name(self) -> str:
        """The name that is unique among applications: of the query, its consumer group, and its marks."""
        return f"{self.app}.{self.name}"

    @property
    def dead_topic(self) -> str:
        """Where dead letters go."""
        return self.dead_letter_topic or f"{self.name}.dead"

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

    def build(self, spark: SparkSession, bootstrap: str) -> tuple[LogicalPlan, Rows]:
        """The logical plan of the job: its function is called, once."""
        from headrace.engine.logical import LogicalPlan

        plan = LogicalPlan(
            spark,
            bootstrap,
            job=self.full_name,
            allowed_lateness_ms=milliseconds_of(self.allowed_lateness) if self.allowed_lateness else 0,
        )
        if self.late_topic is not None:
            plan.hooks.write_to(NewTopic(name=self.late_topic, partitions=1))
        with plan.active():
            return plan, self._build(plan)

    def _build(self, plan: LogicalPlan) -> Rows:
        from pyspark.sql import DataFrame

        from headrace.streams.changelog import rows_for_outputs

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
        self._check_late_rows(plan, rows)
        if self.on_error == "dead_letter":
            self._check_views(plan)
        self._check_key(rows)
        mode = self.output_mode or rows.mode or self.into.mode_for(rows.frame)
        return replace(rows_for_outputs(plan, rows, self.into, self.name), mode=mode)

    def _check_key(self, rows: Rows) -> None:
        for view in self.into.views:
            if rows.key and set(view.key) != set(rows.key):
                raise Misuse(
                    f"job {self.name!r}: its rows replace one another by {', '.join(rows.key)}, and the view "
                    f"{view.name!r} has the key {', '.join(view.key)}: give the view the same key."
                )

    def _check_late_rows(self, plan: LogicalPlan, rows: Rows) -> None:
        option = "late_topic" if self.late_topic is not None else "allowed_lateness"
        if getattr(self, option) is None:
            return
        from headrace.streams.late import windows_of

        windows = windows_of(plan.reachable(rows.frame))
        if self.late_topic is None:
            windows = [window for window in windows if window.can_be_late]
        if not windows:
            raise Misuse(
                f"job {self.name!r} has {option}=, but no window that rows are late for: what a join, "
                "another window or deduplicate() gives is never late."
            )

    def _check_views(self, plan: LogicalPlan) -> None:
        from headrace.streams.table_view import transforms_views

        if transforms_views(plan):
            raise Misuse(
                f'job {self.name!r} has on_error="dead_letter" and a transform() behind a join of tables: a '
                "row of a view cannot become a dead letter, because no single record is its reason. Write "
                "the view without the function, and apply it in another job that reads the view's topic."
            )
