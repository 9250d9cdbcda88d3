"""The seam of outputs: what a sink has to be, in two small protocols.

A job's micro-batches have numbers, which begin at 0 and grow. After a crash the last one may come again, with
the same rows, perhaps in another order. A target that stores the number of a batch together with its rows, in
one atomic step, and tells it when it is asked, gets every row exactly once:

```text
 delivery                      target
   │── newest() ────────────────▶│  41
   │── write(42, rows) ─────────▶│  rows and mark 42, both or neither
   │        (crash, restart)     │
   │── newest() ────────────────▶│  42: the batch is skipped here
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from headrace.folders import Folder

DELETED: Final = "_deleted"
"""The boolean column that says of a row that its key is to go; it is no column of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """For whom a target is opened, and what it can rely on."""

    job: str
    """The job's full name, `application.job`: marks are kept by it and the sink's name."""
    generation: int
    """Which series of batches this is. One that begins at 0 again, after a reset,
    has a higher number: marks of lower ones say nothing about it."""
    schema: pa.Schema
    """The columns of every table that will be written, `_deleted` included if the rows have it."""
    folder: Folder
    """A folder next to the checkpoint, for this sink and generation alone, for what a target must keep: a
    driver on another machine finds it again."""
    state: Path
    """The state folder on the driver's machine."""


@runtime_checkable
class Sink(Protocol):
    """Where a job's rows go besides topics: what a user declares.

    It is frozen, holds no connection, and does not print its secrets. A sink may say how often rows are tried
    that might be taken later (`tries`, otherwise 3; see `Refused`).
    """

    @property
    def name(self) -> str:
        """What people call it, unique in its job: "postgres revenue"."""

    def open(self, place: Place) -> Target:
        """Connect, and make or check what has to be there.

        `Unavailable` when the target is not there now; `Unsuitable` when it cannot take such rows.
        """


class Target(Protocol):
    """An open connection. It is used by one thread, and closed after any `Unavailable`."""

    def newest(self) -> int | None:
        """The newest batch of this job and generation that the target holds; None if it has none."""

    def write(self, batch: int, rows: pa.Table) -> None:
        """Apply all rows and the mark `batch`, both or neither; of rows with one key the last one counts.

        `Unavailable`: try again later. `Refused`: some rows are not taken, and nothing was applied.
        """

    def close(self) -> None:
        """Hang up."""
