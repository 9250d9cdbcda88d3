"""The key and mode of sinks that write tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from headrace.errors import Misuse
from headrace.sinks.sink import DELETED, IncompatibleTarget, WriterFenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.sink import SinkContext

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
