"""What a checkpoint was made by, and whether a changed job can go on from it.

Spark keeps state by position: the n-th source, the n-th stateful operator, the grouping keys in their order.
A job that was changed in these goes on with the wrong state or not at all, and Spark says so late or never.
So the outline of the plan is written down beside the checkpoint, and compared before the job starts again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import Misuse
from headrace.spark.internals import SparkOperator

if TYPE_CHECKING:
    from collections.abc import Mapping


class IncompatibleChange(Misuse):
    """A job was changed in a way that its checkpoint does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The outline of a job's query."""

    generation: int
    """Which of the job's checkpoints this is about; a reset begins the next."""
    inputs: tuple[str, ...]
    """The topics that it reads, in the order of the plan."""
    output: str
    mode: str
    operators: tuple[SparkOperator, ...] = ()
    """The steps for which Spark keeps state."""
    state: Mapping[str, str] = field(default_factory=dict)
    """By the names of the operators for which Headrace keeps state: all that the state depends on."""
    schema: str = ""
    """The columns of its rows: told to people, not compared."""

    def to_json(self) -> dict[str, Any]:
        """The description as JSON knows it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The description that was written as `value`."""
        operators = tuple(
            SparkOperator(
                kind=operator["kind"],
                keys=tuple(operator["keys"]),
                holds=tuple(operator["holds"]),
                details=operator["details"],
            )
            for operator in value["operators"]
        )
        return cls(**{**value, "inputs": tuple(value["inputs"]), "operators": operators})


def check_change(job: str, before: Description, after: Description) -> None:
    """Return if a job that was `before` can go on as `after`; otherwise explain why not, and the ways out."""
    reasons = incompatibilities(before, after)
    if reasons:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        raise IncompatibleChange(
            f"job {job!r} was changed, and cannot go on from its checkpoint:{listed}\n"
            "Undo the change; or give the changed job a new name, so that both have their own state; or "
            f"begin anew with `headrace job reset {job} --to start` (or --to end, or a time), which keeps "
            "the old checkpoint aside. What was written to its topic before stays there."
        )


def incompatibilities(before: Description, after: Description) -> list[str]:
    """What stands against going on, each as a sentence; an empty list if nothing does."""
    reasons = _inputs(before, after) + _state(before, after) + _operators(before, after)
    if before.mode != after.mode and before.operators:
        reasons.append(f"its mode was {before.mode} and is now {after.mode}, with state that depends on it.")
    return reasons


def _inputs(before: Description, after: Description) -> list[str]:
    if before.inputs == after.inputs:
        return []
    if sorted(before.inputs) == sorted(after.inputs):
        return [
            f"it read its topics in the order {_listed(before.inputs)}, and now in the order "
            f"{_listed(after.inputs)}: the checkpoint knows them by position."
        ]
    return [f"it read {_listed(before.inputs)}, and now it reads {_listed(after.inputs)}."]


def _state(before: Description, after: Description) -> list[str]:
    """What changed in the operators for which Headrace keeps state."""
    reasons = []
    for name, kept in before.state.items():
        if name not in after.state:
            reasons.append(f"it kept state for {name} ({kept}), and has no such operator any more.")
        elif after.state[name] != kept:
            reasons.append(f"{name} kept state for {kept}, and now it would be for {after.state[name]}.")
    added = [name for name in after.state if name not in before.state]
    reasons += [f"{name} ({after.state[name]}) is new, and has no state for what was read." for name in added]
    return reasons


def _operators(before: Description, after: Description) -> list[str]:
    kinds = [operator.kind for operator in before.operators]
    now = [operator.kind for operator in after.operators]
    if kinds != now:
        return [f"it kept state for {_listed(kinds)}, and now for {_listed(now)}."]
    pairs = zip(before.operators, after.operators, strict=True)
    return [reason for old, new in pairs for reason in _operator(old, new)]


def _operator(old: SparkOperator, new: SparkOperator) -> list[str]:
    if old.keys != new.keys:
        return [f"the keys of its {old.kind} were {_listed(old.keys)}, and now they are {_listed(new.keys)}."]
    if old.holds != new.holds:
        return [f"its {old.kind} kept {_listed(old.holds)}, and now it keeps {_listed(new.holds)}."]
    if old.details != new.details:
        return [f"the keys of its {old.kind} ({_listed(old.keys)}) are computed differently than before."]
    return []


def _listed(names: Any) -> str:
    return ", ".join(names) or "nothing"
