"""The works: what is computed, and from which input. Each is a row of the tables."""

from dataclasses import asdict, dataclass
from typing import Any

SECOND_MS = 1_000
MINUTE_MS = 60_000
WINDOWS, JOINS, LATE, GROWTH = "windows", "joins", "late events", "how cost grows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row of the tables: what a system computes."""

    name: str
    """What `--only` calls it."""
    measure: str
    cell: str
    kind: str
    """tumbling, hopping, sliding, session, table, streams or view: what programs have a function for."""
    keys: int = 500
    size_ms: int = MINUTE_MS
    every_ms: int = MINUTE_MS
    gap_ms: int = 10 * SECOND_MS
    within_ms: int = 10 * MINUTE_MS
    lateness_ms: int = 10 * SECOND_MS
    table_rows: int = 0
    late_share: float = 0.0
    routes_late: bool = False
    is_native: bool = False
    """Whether Spark's own plan is to be used, where ours would be another."""
    share: float = 1.0
    """Of the events that the plan has for a system: heavy work gets fewer."""
    alone: bool = False
    """Whether Headrace is measured alone: others cannot do it, or did it under another name."""

    def as_json(self) -> dict[str, Any]:
        """The work as it is passed to programs."""
        return asdict(self)


def _hopping(name: str, measure: str, cell: str, every_ms: int = SECOND_MS, **more: Any) -> Work:
    return Work(
        name=name, measure=measure, cell=cell, kind="hopping", every_ms=every_ms, **{"share": 0.5, **more}
    )


WORKS = (
    Work(name="tumbling", measure=WINDOWS, cell="tumbling 1 min, 500 keys", kind="tumbling"),
    _hopping("hopping", WINDOWS, "hopping 60 s every 1 s"),
    _hopping(
        "direct",
        WINDOWS,
        "hopping 60 s every 1 s, Spark's own plan",
        is_native=True,
        alone=True,
        share=0.1,
    ),
    Work(name="sliding", measure=WINDOWS, cell="sliding 60 s", kind="sliding", share=0.5),
    Work(name="session", measure=WINDOWS, cell="session, gap 10 s", kind="session", share=0.5),
    Work(
        name="table",
        measure=JOINS,
        cell="stream with table of 100 k",
        kind="table",
        table_rows=100_000,
        share=0.6,
    ),
    Work(
        name="table-1m",
        measure=JOINS,
        cell="stream with table of 1 M",
        kind="table",
        table_rows=1_000_000,
        share=0.6,
    ),
    Work(name="streams", measure=JOINS, cell="stream with stream, 10 min", kind="streams", share=0.5),
    Work(
        name="view",
        measure=JOINS,
        cell="1,000 changes, tables of 1 M and 10 k",
        kind="view",
        table_rows=1_000_000,
    ),
    Work(
        name="late",
        measure=LATE,
        cell="1 % late, dropped",
        kind="tumbling",
        late_share=0.01,
        alone=True,
        share=0.5,
    ),
    Work(
        name="late",
        measure=LATE,
        cell="1 % late, to a topic",
        kind="tumbling",
        late_share=0.01,
        routes_late=True,
        alone=True,
        share=0.5,
    ),
    Work(
        name="keys",
        measure=GROWTH,
        cell="tumbling 1 min, 50 k keys",
        kind="tumbling",
        keys=50_000,
        alone=True,
        share=0.5,
    ),
    _hopping("overlap", GROWTH, "hopping 60 s every 12 s", 12 * SECOND_MS, alone=True),
)
NAMES = tuple(dict.fromkeys(work.name for work in WORKS))
