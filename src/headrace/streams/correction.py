"""Late events that correct a result which was given already.

```text
streams ──▶ window of Spark's ──▶ results that changed ──▶ held until the window closes ──▶ upserts
            forgets its windows                            those of closed windows
            allowed_lateness                                pass at once
```

Spark waits for events longer than the streams say, by the allowed lateness, and gives what changes. The
stage behind it holds a result back until the watermark without that time has passed the window's end; so the
first result comes when it would have come anyway, and each later one replaces it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.streams.native_windows import END, START, aggregate_natively

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Window


def aggregate_with_corrections(
    rows: Rows, window: Window, by: tuple[str, ...], columns: Sequence[Column], *, allowed_lateness_ms: int
) -> Rows:
    """The result of each window when it closes, and again whenever late rows change it.

    The rows come from streams that are waited for longer, by the allowed lateness.
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
        kernel=CorrectionKernel(keys=names, end=END, within_us=allowed_lateness_ms * 1000),
        schema=changes.frame.schema,
        outline=f"results that are corrected for {allowed_lateness_ms / 1000:g} s: "
        f"{changes.frame.schema.simpleString()}",
    )
    return replace(changes, frame=step.rows, step=step, mode="update")
