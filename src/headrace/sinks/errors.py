"""What can go wrong between a job and a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, Misuse

if TYPE_CHECKING:
    from collections.abc import Mapping


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
