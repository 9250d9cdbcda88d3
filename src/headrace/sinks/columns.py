"""The columns that a sink needs, and those that rows have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.sinks.errors import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_columns(what: str, needed: Iterable[str], columns: Sequence[str]) -> None:
    """Refuse columns that the job's rows do not have; `what` needs them, and begins the complaint."""
    missing = [name for name in needed if name not in columns]
    if missing:
        raise Unsuitable(
            f"{what} needs {', '.join(missing)}, but the job's rows have only the columns "
            f"{', '.join(columns)}: name columns that are there, or add them to the rows."
        )
