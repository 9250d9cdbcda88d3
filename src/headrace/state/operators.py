"""The state folders of a job's operators: what each computes, and figures of their partitions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.state.files import BadState, local_folder, state_files
from headrace.state.versions import MANIFEST, Versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.state.files import StateFiles
    from headrace.state.versions import Manifest

OPERATOR: Final = "operator.json"
FORMAT: Final = 1
OUTDATED: Final = "stage.json"
"""What earlier versions wrote in place of `OPERATOR`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorManifest:
    """What must not change while an operator has state."""

    partitions: int
    """Which keys a partition has depends on it, so it does not follow the number of cores."""
    outline: str
    """What the operator computes, in words that can be compared."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of the state that may be added and removed, and their types, which may not change."""
    keys: tuple[str, ...] = ()
    """The columns of the key."""


def read_operator(location: str) -> OperatorManifest | None:
    """What was written when the operator first ran; None before that."""
    files = state_files(location)
    names = files.names()
    if OPERATOR not in names:
        if OUTDATED in names:
            raise BadState.outdated(f"{files}/{OUTDATED}")
        return None
    try:
        data = json.loads(files.read(OPERATOR))
        if data.pop("format") != FORMAT:
            raise BadState.outdated(f"{files}/{OPERATOR}")
        return OperatorManifest(**{**data, "keys": tuple(data["keys"])})
    except (ValueError, TypeError, KeyError) as fault:
        raise BadState.torn(f"{files}/{OPERATOR}", fault) from fault


def write_operator(location: str, manifest: OperatorManifest, *, batch: int) -> None:
    """Write it in the first batch of a checkpoint, and when columns change; later it has to be there."""
    known = read_operator(location)
    if known is None and batch > 0:
        raise BadState.missing(f"{state_files(location)}/{OPERATOR}")
    if known is not None and known.columns == manifest.columns:
        return
    partitions = manifest.partitions if known is None else known.partitions
    text = json.dumps({**asdict(manifest), "partitions": partitions, "format": FORMAT})
    with state_files(location).create(OPERATOR) as file:
        file.write(text.encode())


class StateFigures(NamedTuple):
    """What the operators of a job kept and did in a batch."""

    rows: int = 0
    byte_size: int = 0
    late: int = 0
    state_ms: float = 0.0
    """The time that the slowest partition of each operator took to read and write state."""


def state_figures(state: str, batch: int) -> StateFigures:
    """The figures of all operators of a job after a batch; it is known when the batch is computed."""
    figures = StateFigures()
    for operator in operator_locations(state):
        found = list(manifests(operator, batch))
        figures = StateFigures(
            figures.rows + sum(manifest.rows for manifest in found),
            figures.byte_size + sum(manifest.byte_size for manifest in found),
            figures.late + sum(manifest.late for manifest in found),
            figures.state_ms + max((manifest.state_ms for manifest in found), default=0.0),
        )
    return figures


def operator_locations(state: str) -> list[str]:
    """The state folders of a job's operators, which are in the folder `state`."""
    folder = local_folder(state)
    return sorted((str(path.parent) for path in folder.glob(f"*/{OPERATOR}")), key=_natural)


def manifests(location: str, batch: int) -> Iterator[Manifest]:
    """The manifests of an operator's partitions after a batch, of those that have one."""
    for files in partition_files(location):
        if f"{batch}{MANIFEST}" in files.names():
            yield Versions(files).read(batch)


def partition_files(location: str) -> list[StateFiles]:
    """The folders of an operator's partitions."""
    folder = local_folder(location)
    numbers = sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())
    return [state_files(location).child(str(number)) for number in numbers]


def _natural(location: str) -> tuple[str, int]:
    """Numbers at the end count as numbers: window-10 comes after window-9."""
    head, _, number = location.rpartition("-")
    return (head, int(number)) if number.isdecimal() else (location, 0)
