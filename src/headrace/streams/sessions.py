"""Sessions put together from stretches: what tasks have summed up of events that follow each other.

```text
 one task       ●─●───●            ●──●        stretches: events that are no further apart than the gap
 another             ●───●──●                  brings the first and the second together
 a session      └───────────┘      └──┘        when the watermark is a gap behind its last event
```

Spark's own plan sorts every event for itself, before and after it was shuffled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.columns.sessions import Gap
from headrace.streams.pieces import put_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Session


def sessions_by_stretches(
    rows: Rows, window: Session, by: Sequence[str], columns: Sequence[Column]
) -> Rows | None:
    """The same rows as Spark's own sessions, at the same time; None where the source cannot sum them up."""
    gap = Gap(gap_us=1000 * window.gap_ms)
    return put_together(rows, gap, f"sessions with a gap of {window.gap}", by, columns, from_rows=False)
