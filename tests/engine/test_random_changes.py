"""Random chains of operators over results that change: what they have emitted equals a recomputation."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, tumbling
from headrace.streams.rows import Operators, Rows
from headrace.testing import run

pytestmark = pytest.mark.timeout(900)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = ("key", "value", "window_start", "window_end")
UPDATES: dict[str, Any] = {"emit": "on_window_update"}


class Row(NamedTuple):
    """A result: its times are seconds."""

    key: str | None
    value: int
    start: int
    end: int


class Event(NamedTuple):
    key: str | None
    value: int
    at: int


Build = Callable[[Rows, Rows], Rows]
Model = Callable[[list[Row], list[Row]], list[Row]]
Step = tuple[Build, Model]
"""An operator in a job and in plain Python: over rows, and those of another stream."""


def shaped(rows: Rows, value: Any = "value") -> Rows:
    named = F.expr(value) if isinstance(value, str) else value
    return rows.transform(lambda frame: frame.withColumn("value", named).select(*COLUMNS))


def order(row: Row) -> Any:
    return row.key is None, row.key or "", row.value, row.start, row.end


def some_filter(random: Random) -> Step:
    modulus = random.randint(2, 3)
    return (
        lambda rows, _: rows.transform(lambda frame: frame.filter(f"value % {modulus} != 0")),
        lambda rows, _: [row for row in rows if row.value % modulus],
    )


def some_top(random: Random) -> Step:
    count, ties = random.randint(1, 2), random.choice(["row_number", "rank", "dense_rank"])

    def ranks(group: list[Row]) -> list[int]:
        if ties == "row_number":
            return [*range(1, len(group) + 1)]
        better = [[each.value for each in group if each.value > row.value] for row in group]
        return [1 + len(set(values) if ties == "dense_rank" else values) for values in better]

    def model(rows: list[Row], _: list[Row]) -> list[Row]:
        found = []
        for place in {(row.start, row.end) for row in rows}:
            group = [row for row in rows if (row.start, row.end) == place]
            group.sort(key=lambda row: (-row.value, row.key is None, row.key or ""))
            ranked = zip(group, ranks(group), strict=True)
            found += [row._replace(value=row.value * 3 + rank) for row, rank in ranked if rank <= count]
        return found

    return (
        lambda rows, _: shaped(rows.top(count, order="value desc", ties=ties), "value * 3 + rank"),
        model,
    )


def some_deduplication(random: Random) -> Step:
    within = random.choice([0, 6, 20])

    def model(rows: list[Row], _: list[Row]) -> list[Row]:
        passed: list[Row] = []
        for row in sorted(rows, key=lambda row: (row.end, row.value, row.start)):
            near = [each for each in passed if each.key == row.key and row.end - each.end <= within]
            if row.key is None or not near:
                passed.append(row)
        return passed

    return lambda rows, _: rows.deduplicate("key", within=f"{within} seconds"), model


def some_window(random: Random) -> Step:
    size, every = random.choice([(10, 10), (12, 6), (5, 0)])
    window: Any = session("5 seconds") if not every else hopping(f"{size} seconds", f"{every} seconds")

    def sessions(rows: list[Row]) -> list[list[Row]]:
        found: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: row.end):
            if found and row.end - found[-1][-1].end <= size:
                found[-1].append(row)
            else:
                found.append([row])
        return found

    def model(rows: list[Row], _: list[Row]) -> list[Row]:
        found = []
        for key in {row.key for row in rows}:
            mine = [row for row in rows if row.key == key]
            if not every:
                # The time of a result is a microsecond before its end: so is that of a session of results.
                groups = [(each[0].end, each[-1].end + size, each) for each in sessions(mine)]
            else:
                last = {
                    start
                    for row in mine
                    for start in range((row.end - 1) // every * every, row.end - 1 - size, -every)
                }
                groups = [(s, s + size, [row for row in mine if s < row.end <= s + size]) for s in last]
            found += [Row(key, sum(row.value for row in each), s, e) for s, e, each in groups]
        return found

    return (
        lambda rows, _: shaped(
            rows.transform(lambda frame: frame.select("key", "value", F.col("window_end")))
            .window(window, by="key")
            .agg(F.sum("value").alias("value"), **UPDATES)
        ),
        model,
    )


def some_join(random: Random) -> Step:
    how, bound = random.choice(["inner", "left"]), random.choice([0, 5])

    def build(rows: Rows, others: Rows) -> Rows:
        named = others.transform(
            lambda frame: frame.select("key", F.col("value").alias("other"), F.col("window_end"))
        )
        joined = rows.join(named, on="key", within=f"{bound} seconds", how=how)  # type: ignore[call-overload]
        return shaped(joined, "value * 5 + coalesce(other, 0)")

    def model(rows: list[Row], others: list[Row]) -> list[Row]:
        found = []
        for row in rows:
            near = [each for each in others if each.key == row.key and abs(each.end - row.end) <= bound]
            matches = [each.value for each in near if row.key is not None]
            values = matches or ([0] if how == "left" else [])
            found += [row._replace(value=row.value * 5 + value) for value in values]
        return found

    return build, model


STEPS = (some_filter, some_top, some_deduplication, some_window, some_join)


def chain(random: Random) -> list[Step]:
    return [make(random) for make in random.sample(STEPS, random.randint(2, 3))]


def minutes(stream: Operators) -> Rows:
    made = stream.window(tumbling("2 seconds"), by="key").agg(F.sum("value").alias("value"), **UPDATES)
    return shaped(made)


def summed(events: Sequence[Event]) -> list[Row]:
    sums: Counter[tuple[str | None, int]] = Counter()
    for event in events:
        sums[event.key, event.at // 2 * 2] += event.value
    places = {(event.key, event.at // 2 * 2) for event in events}
    return [Row(key, sums[key, start], start, start + 2) for key, start in places]


def some_events(random: Random) -> list[Event]:
    return [
        Event(random.choice(["a", "b", None]), random.randint(-4, 4), random.randrange(24))
        for _ in range(random.randint(1, 9))
    ]


def written(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [event._asdict() | {"at": BEGIN + timedelta(seconds=event.at)} for event in events]


def seconds(value: datetime) -> int:
    return round((value - BEGIN) / timedelta(seconds=1))


SEEDS = [
    pytest.param([1, 2, 3, 4]),
    *(pytest.param([*range(n, n + 4)], marks=pytest.mark.soak) for n in range(5, 45, 4)),
]


@pytest.mark.parametrize("seeds", SEEDS)
def test_chains_of_operators_take_back_what_is_replaced(spark: SparkSession, seeds: list[int]) -> None:
    chains = {seed: chain(Random(seed)) for seed in seeds}
    app = App("shop")
    options: dict[str, Any] = {"event_time": "at", "watermark_delay": "1 hour"}
    events, others = (app.stream(name, "key string, value long, at timestamp", **options) for name in "eo")

    @app.job(into=app.topic("changes"))
    def changes() -> DataFrame:
        made = []
        for seed, steps in chains.items():
            rows = reduce(lambda rows, step: step[0](rows, minutes(others)), steps, minutes(events))
            made.append(rows.changelog.df.withColumn("seed", F.lit(seed)))
        return reduce(DataFrame.unionByName, made)

    random = Random(str(seeds))
    parts = [(some_events(random), some_events(random)) for _ in range(3)]
    found: dict[int, Counter[Row]] = {seed: Counter() for seed in seeds}
    for row in run(changes, [{"e": written(one), "o": written(other)} for one, other in parts]):
        place = Row(row["key"], row["value"], seconds(row["window_start"]), seconds(row["window_end"]))
        found[row["seed"]][place] += row["_weight"]
    results, other_results = (summed([event for part in parts for event in part[side]]) for side in (0, 1))
    for seed, steps in chains.items():
        expected = reduce(lambda rows, step: step[1](rows, other_results), steps, results)
        counted = {row: count for row, count in found[seed].items() if count}
        assert counted == Counter(expected), f"seed {seed}"
