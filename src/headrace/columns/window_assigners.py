"""Window assigners: into which partial aggregates rows go, and what window kernels have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.columns.aggregates import AggregateSpec, Partial, partials_of, with_state
from headrace.columns.changelog import replaced
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.session_windows import SessionAssigner
from headrace.columns.zoned_windows import ZonedAssigner

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from headrace.columns.keyed import Times

WindowAssigner: TypeAlias = HoppingAssigner | SessionAssigner | ZonedAssigner


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKernelSettings:
    """What is computed of each window, and when its result is given."""

    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]
    output: pa.Schema
    on_update: bool = False
    """Whether a result is given after each batch that changed it, instead of when its window closes."""
    allowed_lateness_us: int = 0
    """For how long after its result late rows correct it: the watermark of a batch is held back by that."""

    retracts: bool = False
    """Whether a result that replaces another one is given as a changelog: with the weight of each row."""

    @property
    def partials(self) -> tuple[Partial, ...]:
        """The partial aggregates that are kept."""
        return partials_of(self.specs)

    @property
    def gives_changes(self) -> bool:
        """Whether a result can be given more than once."""
        return self.on_update or self.allowed_lateness_us > 0

    @property
    def deadline_rule(self) -> str:
        """What the deadlines of windows depend on besides the windows."""
        return "on update" if self.on_update else f"on close, {self.allowed_lateness_us} us of lateness"

    @property
    def nothing(self) -> pa.Table:
        """The output of a batch that changes nothing."""
        return self.changes(None, self.output.empty_table())

    def changes(self, before: pa.Table | None, after: pa.Table) -> pa.Table:
        """The output of a batch: new results, of which some take the place of those before."""
        if not self.retracts:
            return after
        old = after.slice(0, 0) if before is None else before
        return replaced(old, after, [*self.output.names[:2], *self.keys])

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """A state with the columns of today's rows; aggregates that it does not have start empty."""
        return with_state(state, schema.empty_table(), self.partials)

    def closing(self, times: Times) -> Times:
        """The watermarks by which results are given."""
        return times.behind(-self.allowed_lateness_us)


def assigner_from_json(told: Mapping[str, Any]) -> WindowAssigner:
    """An assigner from its plain data.

    >>> assigner_from_json({"gap_us": 5})
    SessionAssigner(gap_us=5)
    """
    if "zone" in told:
        return ZonedAssigner(**told)
    return SessionAssigner(**told) if "gap_us" in told else HoppingAssigner(**told)
