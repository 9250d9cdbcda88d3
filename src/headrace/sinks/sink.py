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

from headrace.errors import HeadraceError, Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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


class Unavailable(HeadraceError):
    """The target is down, slow or locked now: the same batch is tried again later."""


class Refused(HeadraceError):
    """Rows that the target does not take; nothing of their batch was applied.

    `rows` says why, by the row's index in the table. `final` is False where a later try may go well, as with
    a foreign key whose row is still on its way: then the batch is tried again before the rows are given up.
    """

    def __init__(self, rows: Mapping[int, str], *, final: bool = True) -> None:
        index, reason = next(iter(rows.items()))
        super().__init__(f"{len(rows)} rows were refused; row {index}: {reason}")
        self.rows = dict(rows)
        self.final = final


class Superseded(HeadraceError):
    """A later run of the same job has written to the target: this one must not any more."""


class Unsuitable(Misuse):
    """The target is not made for these rows: a table with other columns, an address that is none."""


def check_columns(what: str, needed: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse columns that the job's rows do not have; `what` needs them, and begins the complaint."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise Unsuitable(
            f"{what} needs {', '.join(missing)}, but the job's rows have only the columns "
            f"{', '.join(columns)}: name columns that are there, or add them to the rows."
        )
