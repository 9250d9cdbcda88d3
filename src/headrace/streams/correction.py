"""Late events that correct a result which was given already.

```text
streams ──▶ window of Spark's ──▶ results that changed ──▶ held until the window closes ──▶ upserts
            forgets its windows                            those of closed windows
            `within` later                                 pass at once
```

Spark waits for events longer than the streams say, by the time for corrections, and gives what changes. The
stage behind it holds a result back until the watermark without that time has passed the window's end; so the
first result comes when it would have come anyway, and each later one replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.native_windows import END, START, aggregate_natively

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Correct:
    """For how long a window can be corrected after its result was given."""

    within: str
    beyond: str = "drop"
    """What becomes of rows that are later than that: they are dropped, or go to the topic of this name."""

    def __post_init__(self) -> None:
        if not self.within_ms:
            raise Misuse("correct(…) needs a time of at least a millisecond.")

    @property
    def within_ms(self) -> int:
        """For how long."""
        return milliseconds_of(self.within, "the time for corrections")


def correct(within: str, *, beyond: str = "drop") -> Correct:
    """Let rows that come late, but not later than this, correct the result of their window.

    >>> correct("1 hour").within_ms
    3600000
    """
    return Correct(within=within, beyond=beyond)


def aggregate_with_corrections(
    rows: Rows, window: Window, by: tuple[str, ...], columns: Sequence[Column], late: Correct
) -> Rows:
    """The result of each window when it closes, and again whenever late rows change it.

    The rows come from streams that are waited for longer, by the time for corrections.
    """
    from headrace.columns.corrections import CorrectionKernel
    from headrace.streams.stages import staged

    changes = aggregate_natively(rows, window, by, columns)
    names = (START, *by)
    step = staged(
        changes.frame,
        "a corrected window",
        spread=names,
        keys=names,
        kernel=CorrectionKernel(keys=names, end=END, within_us=late.within_ms * 1000),
        schema=changes.frame.schema,
        outline=f"results that are corrected for {late.within}: {changes.frame.schema.simpleString()}",
    )
    return replace(changes, frame=step.rows, step=step, mode="update")
