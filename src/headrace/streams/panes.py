"""Windows put together from panes: those that overlap much, and those right behind a stream.

```text
every 1       ┌─1─┬─2─┬─3─┬─4─┬─5─┬─6─┐      each event counts in one pane
size 5        └───────────────────┘          when it closes, a window is the sum of its five panes
                  └───────────────────┘
```

Spark's own plan counts an event once for each of its windows: sixty times with a minute every second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.columns.panes import Hops
from headrace.streams.pieces import put_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Hopping

ENOUGH: Final = 4
"""Windows that an event is in, from which on panes are faster."""


def hop_by_panes(rows: Rows, window: Hopping, by: Sequence[str], columns: Sequence[Column]) -> Rows | None:
    """The same rows as Spark's own window gives, at the same time; None where that is the better way.

    It is with gaps, in a time zone, and with little overlap unless the source itself can sum up.
    """
    if window.zone is not None or window.has_gaps:
        return None
    hops = Hops(
        size_us=window.size_ms * 1000, every_us=window.every_ms * 1000, offset_us=window.offset_ms * 1000
    )
    outline = f"panes of windows of {window.size} every {window.every}, offset {window.offset}"
    overlaps = window.size_ms >= ENOUGH * window.every_ms
    return put_together(rows, hops, outline, by, columns, from_rows=overlaps)
