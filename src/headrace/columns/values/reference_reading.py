"""Values that a fast pass does not vouch for: read again one at a time, and put back in their places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.values.assembly import assemble
from headrace.columns.values.errors import BadValue
from headrace.columns.values.parser import Parsed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.columns.values.scan import Scan
    from headrace.columns.values.time_rules import TimeRules


class Reference(Protocol):
    """Reads one value at a time."""

    def read(self, value: bytes) -> Any:
        """The value as Python objects that Arrow takes, or `BadValue`."""
        ...


class ReferenceValue(NamedTuple):
    """What a value turned out to be: a value, or the reason why it is none."""

    value: Any
    error: str | None


def finish(scan: Scan, values: pa.BinaryArray, rules: TimeRules, reference: Reference) -> Parsed:
    """The column of a scan of `values`, with what is doubtful in it read by `reference`."""
    parsed = assemble(scan, rules)
    doubtful = np.flatnonzero(scan.doubtful)
    if not len(doubtful):
        return Parsed(parsed, None)
    again = values.take(pa.array(doubtful)).to_pylist()
    return with_answers(parsed, doubtful, [answer(reference, value) for value in again])


def answer(reference: Reference, value: bytes) -> ReferenceValue:
    """What `reference` says about `value`."""
    try:
        return ReferenceValue(reference.read(value), None)
    except BadValue as error:
        return ReferenceValue(None, str(error))


def with_answers(values: pa.Array, rows: NDArray[np.int64], answers: Sequence[ReferenceValue]) -> Parsed:
    """`values` with the answers in their `rows`."""
    good = [number for number, answer in enumerate(answers) if answer.error is None]
    second = pa.array([answers[number].value for number in good] + [None], values.type)
    # The null at the end of the second reading stands for all that are none.
    places = np.arange(len(values))
    places[rows] = len(values) + len(good)
    places[rows[good]] = len(values) + np.arange(len(good))
    merged = pc.take(pa.concat_arrays([values, second]), pa.array(places))
    return Parsed(merged, _errors(len(values), rows, answers) if len(good) < len(answers) else None)


def with_reasons(parsed: Parsed, reasons: Mapping[int, str]) -> Parsed:
    """What was parsed, without the values in the rows of `reasons`, which are errors instead."""
    count = len(parsed.values)
    rows = np.fromiter(sorted(reasons), np.int64, len(reasons))
    bad = np.zeros(count, np.bool_)
    bad[rows] = True
    errors = [None] * count if parsed.errors is None else parsed.errors.to_pylist()
    for row, reason in reasons.items():
        errors[row] = errors[row] or reason
    values = pc.take(parsed.values, pa.array(np.arange(count), mask=bad))
    return Parsed(values, pa.array(errors, pa.string()))


def _errors(count: int, rows: NDArray[np.int64], answers: Sequence[ReferenceValue]) -> pa.StringArray:
    """The errors of the answers in their rows, and null in all others."""
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(answers))
    elsewhere = np.ones(count, np.bool_)
    elsewhere[rows] = False
    errors = pa.array([answer.error for answer in answers], pa.string())
    return pc.take(errors, pa.array(places, mask=elsewhere))
