"""What all outputs into tables have in common: a name, a key, and a mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from headrace.errors import Misuse
from headrace.sinks.sink import DELETED, Superseded, Unsuitable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.sinks.sink import Place

Mode: TypeAlias = Literal["upsert", "append", "mirror"]
"""`upsert`: a row takes the place of the one with its key; `mirror`: and rows that are `_deleted` go;
`append`: every row is added."""
USUAL_TRIES = 3


def checked_key(key: str | Sequence[str], what: str) -> tuple[str, ...]:
    """The key's columns, each once."""
    columns = (key,) if isinstance(key, str) else tuple(key)
    if len(set(columns)) != len(columns) or DELETED in columns:
        raise Misuse(f"{what}: key={columns!r}: name each column of the key once, and not {DELETED}.")
    return columns


def checked_mode(mode: Mode | None, key: tuple[str, ...], what: str) -> Mode:
    """The mode, which without a word is upsert where there is a key, and append where there is none."""
    if mode is None:
        return "upsert" if key else "append"
    if mode not in get_args(Mode):
        raise Misuse(f"{what}: mode {mode!r} is not known: use upsert, append or mirror.")
    if mode != "append" and not key:
        raise Misuse(f'{what}: mode {mode} needs a key: name its columns, for example key="id".')
    return mode


def written_columns(schema: pa.Schema, key: Sequence[str], mode: Mode, what: str) -> tuple[str, ...]:
    """The columns of the rows that are columns of the table; `Unsuitable` where the key is not among them."""
    names = [name for name in schema.names if name != DELETED or mode == "append"]
    missing = [name for name in key if name not in names]
    if missing:
        raise Unsuitable(
            f"{what} is keyed by {', '.join(missing)}, but the job's rows have only the columns "
            f"{', '.join(schema.names)}: name others as the key, or add them to the rows."
        )
    return tuple(names)


def refuse_if_superseded(mark: tuple[int, int] | None, place: Place, what: str) -> None:
    """Raise `Superseded` where the mark (generation, batch) is of a later series of batches than ours."""
    if mark is not None and mark[0] > place.generation:
        raise Superseded(
            f"{what}: a later run of the job {place.job!r}, one that began anew, has written to the table. "
            "Run each job once, with one state folder."
        )
