"""The interface of sinks: tasks stage the rows of a batch, and the driver commits them.

A `Sink` is declared by a user. Tasks stage its rows as files (`headrace.sinks.staging`), and if the sink has
the methods of `TaskStaging`, they prepare them in the target too. The driver opens its `SinkWriter`, which
commits what all tasks have staged.

A job's micro-batches are numbered from 0. After a crash the last batch may be repeated, with the same rows,
perhaps in another order. A writer that stores the number of a batch atomically with its rows, and returns
it on request, writes every row exactly once:

```text
 delivery                      writer
   │── last_batch() ────────────▶│  41
   │── commit(42, staged) ──────▶│  all rows and batch marker 42, atomically
   │        (crash, restart)     │
   │── last_batch() ────────────▶│  42: the batch is skipped
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from headrace.errors import HeadraceError, Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from headrace.folders import Folder
    from headrace.sinks.staging import StagedBatch


DELETED: Final = "_deleted"
"""The boolean column that marks a row as a delete of its key; not a column of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """The job for which a writer is opened, and what the writer can use."""

    job: str
    """The job's full name, `application.job`: batch markers are stored per job and sink."""
    generation: int
    """The generation of the batches. After a reset, batches start at 0 again with a higher generation, and
    markers of lower generations are ignored."""
    schema: pa.Schema
    """The columns of every batch, including `_deleted` if the rows have it."""
    folder: Folder
    """A folder next to the checkpoint for the files of this sink and generation: a driver on another machine
    finds it again."""
    state: Path
    """The state folder on the driver's machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingContext:
    """The job for which a task stages rows."""

    job: str
    generation: int
    schema: pa.Schema


@runtime_checkable
class Sink(Protocol):
    """An output of a job other than a topic, as a user declares it.

    It is frozen, holds no connection, and does not print its secrets. Tasks get a copy of it if it has the
    methods of `TaskStaging`, and look up passwords themselves. An attribute `max_attempts` (default 3)
    limits the attempts for rows that are rejected with `retryable=True`.
    """

    @property
    def name(self) -> str:
        """The name for display, unique in its job: "postgres revenue"."""

    def open(self, context: SinkContext) -> SinkWriter:
        """Connect, and create or check the target.

        Raises `TargetUnavailable` if the target does not respond, and `IncompatibleTarget` if it cannot hold
        such rows.
        """


class SinkWriter(Protocol):
    """An open connection to a target, used by one thread, and closed after any `TargetUnavailable`."""

    def last_batch(self) -> int | None:
        """The last batch of this job and generation in the target, or None."""

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Write all rows and the batch marker atomically; of rows with one key the last one counts.

        Iterating over `staged` gives chunks of bounded size, each with its rows (`chunk.read()`). Raises
        `TargetUnavailable` if the batch should be retried later, and `RowsRejected` if the target rejects
        rows; then nothing was written. A batch that the target has already is skipped.
        """

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class TaskStaging(Protocol):
    """A sink whose tasks prepare large parts of a batch in the target, invisible until the commit."""

    @property
    def name(self) -> str:
        """The name of the sink."""

    @property
    def reads_staged_rows(self) -> bool:
        """Whether `commit` may read rows that were prepared, for example to name those that are rejected."""

    def open_stager(self, context: StagingContext) -> TaskStager:
        """Connect from a task, while other tasks do the same; an error leaves the rows to the driver."""

    def discard(self, context: SinkContext, keep: Sequence[str]) -> None:
        """Remove what tasks of this job prepared, except for these tokens.

        The driver calls it at its start and after a batch: tasks that were killed leave something behind.
        """


class TaskStager(Protocol):
    """A task's connection to a target."""

    def stage(self, rows: pa.Table) -> str | None:
        """Prepare rows, and return what the commit needs to find them (`chunk.token`).

        Returns None, or raises a `HeadraceError`, if the rows cannot be prepared: the driver writes them. An
        attempt of a task may be repeated, also concurrently, and prepares the rows again.
        """

    def close(self) -> None:
        """Close the connection."""


class TargetUnavailable(HeadraceError):
    """The target is down, slow or locked; the batch is retried later."""


class RowsRejected(HeadraceError):
    """The target rejects rows; nothing of the batch was written.

    `rows` has the reason of each row by its ordinal in the batch (`chunk.ordinals`). `retryable` is True if a
    later attempt may succeed, for example when the row that a foreign key refers to is not written yet.
    """

    def __init__(self, rows: Mapping[int, str], *, retryable: bool = False) -> None:
        index, reason = next(iter(rows.items()))
        super().__init__(f"{len(rows)} rows were rejected; row {index}: {reason}")
        self.rows = dict(rows)
        self.retryable = retryable


class WriterFenced(HeadraceError):
    """A later run of the same job has written to the target: this run must stop."""


class IncompatibleTarget(Misuse):
    """The target cannot hold these rows, or its address is invalid."""


def require_columns(what: str, needed: Iterable[str], columns: Sequence[str]) -> None:
    """Raise `IncompatibleTarget` for columns that the rows do not have; `what` starts the message."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise IncompatibleTarget(
            f"{what} needs {', '.join(missing)}, but the job's rows have only the columns "
            f"{', '.join(columns)}: use existing columns, or add them to the rows."
        )


Mode: TypeAlias = Literal["upsert", "append", "mirror"]
"""`upsert`: a row replaces the row with its key; `mirror`: an upsert, and rows with `_deleted` are deleted;
`append`: every row is inserted."""
DEFAULT_MAX_ATTEMPTS = 3


def validate_key(key: str | Sequence[str], what: str) -> tuple[str, ...]:
    """The key columns as a tuple; raises `Misuse` for duplicates."""
    columns = (key,) if isinstance(key, str) else tuple(key)
    if len(set(columns)) != len(columns) or DELETED in columns:
        raise Misuse(f"{what}: key={columns!r}: name each column of the key once, and not {DELETED}.")
    return columns


def validate_mode(mode: Mode | None, key: tuple[str, ...], what: str) -> Mode:
    """The mode; by default upsert if there is a key, otherwise append."""
    if mode is None:
        return "upsert" if key else "append"
    if mode not in get_args(Mode):
        raise Misuse(f"{what}: mode {mode!r} is unknown: use upsert, append or mirror.")
    if mode != "append" and not key:
        raise Misuse(f'{what}: mode {mode} needs a key: name its columns, for example key="id".')
    return mode


def target_columns(schema: pa.Schema, key: Sequence[str], mode: Mode, what: str) -> tuple[str, ...]:
    """The columns of the rows that are written; raises `IncompatibleTarget` if the key is not among them."""
    names = [name for name in schema.names if name != DELETED or mode == "append"]
    missing = [name for name in key if name not in names]
    if missing:
        raise IncompatibleTarget(
            f"{what} is keyed by {', '.join(missing)}, but the job's rows have only the columns "
            f"{', '.join(schema.names)}: choose another key, or add the columns to the rows."
        )
    return tuple(names)


def check_not_fenced(mark: tuple[int, int] | None, context: SinkContext, what: str) -> None:
    """Raise `WriterFenced` if the marker (generation, batch) has a later generation than this run."""
    if mark is not None and mark[0] > context.generation:
        raise WriterFenced(
            f"{what}: a later generation of the job {context.job!r} has written to the table. Run each "
            "job once, with one state folder."
        )
