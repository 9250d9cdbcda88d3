"""Rows into a table of SQLite: `into=sqlite("revenue", key="product", file="shop.db")`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.table_sink import USUAL_TRIES, checked_key, checked_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.sink import Place, Target
    from headrace.sinks.table_sink import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSink:
    """A table that a job writes; see `sqlite`."""

    table: str
    key: tuple[str, ...]
    mode: Mode
    file: Path | None = None
    tries: int = USUAL_TRIES

    @property
    def name(self) -> str:
        """What people call it."""
        return f"sqlite {self.table}"

    def open(self, place: Place) -> Target:
        """Open the file, which is made when it is not there; make the table, or check it."""
        from headrace.sinks.sqlite_target import open_target

        file = self.file or Settings.read().url("sqlite")
        if file is None:
            raise Misuse(
                f'{self.name}: no file is named: give file="shop.db", or set HEADRACE_SQLITE in the '
                "environment, or url under [sqlite] in headrace.toml."
            )
        return open_target(self, Path(file), place)


def sqlite(
    table: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode | None = None,
    file: str | Path | None = None,
    tries: int = USUAL_TRIES,
) -> SqliteSink:
    """A table in a file of SQLite's for a job to write into, each row exactly once.

    Key, modes and `tries` are those of `postgres`. Times are stored as texts in ISO 8601, decimals as texts,
    truth as 0 and 1, and whatever has parts as JSON.

    >>> sqlite("revenue", key="product", file="shop.db").name
    'sqlite revenue'
    """
    what = f"sqlite {table!r}"
    if not table:
        raise Misuse(f"{what}: write the table's name.")
    if tries < 1:
        raise Misuse(f"{what}: tries is at least 1.")
    columns = checked_key(key, what)
    return SqliteSink(
        table=table,
        key=columns,
        mode=checked_mode(mode, columns, what),
        file=None if file is None else Path(file),
        tries=tries,
    )
