"""A table as plain Python has it: for each key the list of its versions. What the copy must agree with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.columns.key_hash import key_bytes
from headrace.tables.changes import Changes, Positions, VersionMaker, joined_changes
from headrace.tables.definition import Definition
from headrace.tables.files import read_versions
from headrace.tables.lookup import TableSnapshot, Versions

USERS = Definition(
    topic="users",
    row_type=pa.struct([("id", pa.int64()), ("city", pa.string()), ("since", pa.timestamp("us", "UTC"))]),
    key=("id",),
    valid_from="since",
    keep_us=1_000,
)


class Record(NamedTuple):
    """A record of the topic: a row, or without a city the end of one."""

    id: int
    city: str | None
    at: int
    recorded: int | None = None
    """The time of the record, if it is another than `at`."""

    def columns(self, offset: int) -> dict[str, Any]:
        since = f"1970-01-01T00:00:00.{self.at:06d}Z"
        value = f'{{"id": {self.id}, "city": "{self.city}", "since": "{since}"}}'
        return {
            "key": str(self.id).encode(),
            "value": None if self.city is None else value.encode(),
            "offset": offset,
            "timestamp": self.at if self.recorded is None else self.recorded,
        }


RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass
class Log:
    """The partitions of a topic, as lists."""

    partitions: list[list[Record]]
    maker: VersionMaker = field(default_factory=lambda: VersionMaker(USERS))
    reads: int = 0

    def read(self, start: Positions, end: Positions) -> Changes:
        self.reads += 1
        parts = []
        for number, stop in sorted(end.items()):
            first = start.get(number, 0)
            rows = [self.partitions[number][at].columns(at) for at in range(first, stop)]
            parts.append(self.maker.changes(pa.RecordBatch.from_pylist(rows, schema=RECORDS), number))
        return joined_changes(parts, self.maker.schema)


@dataclass
class Model:
    """Versions by key: (at, partition, offset) and the city, None where the row was deleted."""

    versions: dict[int, list[tuple[tuple[int, int, int], str | None]]] = field(default_factory=dict)

    def see(self, log: Log, start: Mapping[int, int], end: Mapping[int, int]) -> None:
        for number, stop in end.items():
            for offset in range(start.get(number, 0), stop):
                record = log.partitions[number][offset]
                order = (record.at, number, offset)
                self.versions.setdefault(record.id, []).append((order, record.city))

    def city(self, key: int, at: int | None) -> str | None:
        known = [each for each in self.versions.get(key, []) if at is None or each[0][0] <= at]
        return max(known)[1] if known else None


def snapshot(current: Any) -> TableSnapshot:
    """The table in the files of a copy."""
    return TableSnapshot(*(None if path is None else opened(path) for path in (current.base, current.hot)))


def opened(path: str) -> Versions:
    from pathlib import Path

    found = read_versions(Path(path))
    assert found is not None
    return Versions.of(found[0])


def cities(found: TableSnapshot, keys: list[int | None], times: list[int] | None) -> list[str | None]:
    """What the table says about each key, at its time or now."""
    import numpy as np

    at = None if times is None else np.array(times, np.int64)
    matches = found.look_up(key_bytes([pa.array(keys, pa.int64())]), at)
    if matches is None:
        return [None] * len(keys)
    listed: list[str | None] = matches.columns[0].to_pylist()
    assert [city is not None for city in listed] == matches.is_match.tolist()
    return listed
