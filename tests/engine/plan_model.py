"""Random logical plans, and what they give, recomputed in plain Python from all rows that have come.

A plan is a chain of steps over the stream `events`. Each step can be built as a job does it (`build`), and
recomputed (`model`): `model` gets the rows of a batch with the two watermarks, remembers all that came, and
computes the rows that come out from the beginning. A row has the columns `key`, `value` and its event time;
its weight is 1, or -1 where it takes a row back.

A run is a list of parts. Each part is one micro-batch in a query of its own, which Spark closes with a batch
without rows, so a part's rows are late by the watermark after the part before. A restarted query knows
nothing of a stream until rows of it have come, and then the watermark stays where it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from random import Random

    from headrace.streams.rows import Operators, Rows
    from headrace.streams.windows import Window

SCHEMA = "key string, value long, at timestamp"
DELAY_MS = 4_000
FIRST_MS = 1_767_225_600_000
"""2026: far from 1970, with which Spark's watermark starts."""


class Event(NamedTuple):
    """A row: of a stream, or of a step."""

    key: str | None
    value: int | None
    at_ms: int | None
    more: tuple[Any, ...] = ()
    """Other columns: start of a window, value of the other side, rank."""
    weight: int = 1


class Times(NamedTuple):
    late_ms: int
    watermark_ms: int

    def behind(self, ms: int) -> Times:
        return Times(self.late_ms - ms, self.watermark_ms - ms)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is known of the rows of a step."""

    time: str = "at"
    is_end: bool = False
    """Whether the time is the end of a window, which is not in it."""
    behind_ms: int = 0
    is_whole: bool = False
    """Whether all rows of a window come in one batch."""
    is_ordered: bool = True
    """Whether rows come in the order of the topic."""
    more: tuple[str, ...] = ()
    can_be_joined: bool = True


Model = Callable[[Sequence[Event], Times], list[Event]]


class Step:
    """One operator of a plan."""

    reads: ClassVar[tuple[str, ...]] = ()

    def fits(self, shape: Shape) -> bool:
        """Whether it can follow rows of this shape."""
        return True

    def after(self, shape: Shape) -> Shape:
        """The shape of its rows."""
        return shape

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        """The step in a job."""
        raise NotImplementedError

    def model(self, shape: Shape) -> Model:
        """The step in plain Python; rows of other inputs come by `Joined`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Filter(Step):
    modulus: int

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        return rows.transform(lambda frame: frame.filter(f"value % {self.modulus} != 0"))

    def model(self, shape: Shape) -> Model:
        def step(rows: Sequence[Event], times: Times) -> list[Event]:
            return [row for row in rows if row.value is not None and row.value % self.modulus]

        return step


@dataclass(frozen=True)
class Project(Step):
    added: int

    def after(self, shape: Shape) -> Shape:
        return replace(shape, is_whole=shape.is_whole)

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        return rows.transform(lambda frame: frame.withColumn("value", F.col("value") * 3 + self.added))

    def model(self, shape: Shape) -> Model:
        def step(rows: Sequence[Event], times: Times) -> list[Event]:
            return [
                row._replace(value=None if row.value is None else row.value * 3 + self.added) for row in rows
            ]

        return step


@dataclass(frozen=True)
class Windowed(Step):
    """Sum and count of a window, by key or of all."""

    window: Window
    kind: str
    size_ms: int
    every_ms: int = 0
    by_key: bool = True

    def after(self, shape: Shape) -> Shape:
        if self.kind == "sliding":
            return replace(shape, more=("count",), is_whole=False, is_ordered=False)
        return Shape(
            time="window_end",
            is_end=True,
            behind_ms=shape.behind_ms,
            is_whole=self.kind == "hopping",
            is_ordered=False,
            more=("window_start", "count"),
        )

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        if shape.time == "window_end":  # a result has these names too
            rows = rows.transform(lambda frame: frame.drop("window_start", "count", "rank"))
        windowed = rows.window(self.window, by="key" if self.by_key else ())
        made = windowed.agg(F.sum("value").alias("value"), F.count(F.lit(1)).alias("count"))
        if self.by_key:
            return made
        return made.transform(lambda frame: frame.withColumn("key", F.lit(None).cast("string")))

    def model(self, shape: Shape) -> Model:
        kinds = {"hopping": self._hopping, "session": self._session, "sliding": self._sliding}
        held: list[Event] = []
        closed: set[Any] = set()
        step = kinds[self.kind]

        def run(rows: Sequence[Event], times: Times) -> list[Event]:
            times = times.behind(shape.behind_ms)
            keyed = [row if self.by_key else row._replace(key=None) for row in rows]
            timed = [row for row in keyed if row.at_ms is not None]
            return step(held, closed, timed, times, 1 if shape.is_end else 0)

        return run

    def _hopping(
        self, held: list[Event], closed: set[Any], rows: list[Event], times: Times, inside: int
    ) -> list[Event]:
        """Each row remembers in `more` in which windows it came in time."""
        for row in rows:
            at = _at(row) - inside
            last = at // self.every_ms * self.every_ms
            starts = range(last - self.size_ms // self.every_ms * self.every_ms, last + 1, self.every_ms)
            kept = tuple(
                start
                for start in starts
                if start <= at < start + self.size_ms and start + self.size_ms > times.late_ms
            )
            held.append(row._replace(more=kept))
        places = {(start, row.key) for row in held for start in row.more}
        due = {place for place in places if place[0] + self.size_ms <= times.watermark_ms} - closed
        closed |= due
        return [
            _summed(key, start + self.size_ms, start, [r for r in held if r.key == key and start in r.more])
            for start, key in due
        ]

    def _session(
        self, held: list[Event], closed: set[Any], rows: list[Event], times: Times, inside: int
    ) -> list[Event]:
        held += [
            row._replace(at_ms=_at(row) - inside, more=(inside,))
            for row in rows
            if _at(row) - inside + self.size_ms > times.late_ms
        ]
        results = []
        for key in {row.key for row in held}:
            mine = sorted((row for row in held if row.key == key), key=_at)
            groups: list[list[Event]] = []
            for row in mine:
                if groups and _at(row) <= _at(groups[-1][-1]) + self.size_ms:
                    groups[-1].append(row)
                else:
                    groups.append([row])
            for group in groups:
                end = _at(group[-1]) + self.size_ms
                if end <= times.watermark_ms:
                    results.append(_summed(key, end, _at(group[0]), group))
                    for row in group:
                        held.remove(row)
        return results

    def _sliding(
        self, held: list[Event], closed: set[Any], rows: list[Event], times: Times, inside: int
    ) -> list[Event]:
        held += [row for row in rows if _at(row) > times.late_ms]
        due = [row for row in held if times.late_ms < _at(row) <= times.watermark_ms]
        results = []
        for row in due:
            seen = [r for r in held if r.key == row.key and _at(row) - self.size_ms < _at(r) <= _at(row)]
            results.append(_summed(row.key, _at(row), None, seen))
        return results

    def fits(self, shape: Shape) -> bool:
        # Ends of windows are a microsecond inside for windows: sessions of them have odd bounds.
        if shape.is_end and self.kind in ("session", "sliding"):
            return False
        return shape.time == "at" or shape.is_end


@dataclass(frozen=True)
class Deduplicate(Step):
    within_ms: int

    def fits(self, shape: Shape) -> bool:
        return shape.is_ordered  # otherwise it is open which row is the first

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        return rows.deduplicate("key", within=f"{self.within_ms} milliseconds")

    def model(self, shape: Shape) -> Model:
        passed: list[Event] = []

        def step(rows: Sequence[Event], times: Times) -> list[Event]:
            late_ms = times.behind(shape.behind_ms).late_ms
            result = []
            for row in rows:
                if row.at_ms is not None and row.at_ms <= late_ms:
                    continue
                is_known = row.key is not None and row.at_ms is not None
                if is_known and any(
                    each.key == row.key and abs(_at(each) - _at(row)) <= self.within_ms for each in passed
                ):
                    continue
                if is_known:
                    passed.append(row)
                result.append(row)
            return result

        return step


@dataclass(frozen=True)
class Top(Step):
    count: int

    def fits(self, shape: Shape) -> bool:
        return shape.is_whole

    def after(self, shape: Shape) -> Shape:
        return replace(shape, more=(*shape.more, "rank"), is_whole=False)

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        return rows.rows.top(self.count, order="value desc")

    def model(self, shape: Shape) -> Model:
        def step(rows: Sequence[Event], times: Times) -> list[Event]:
            windows: dict[Any, list[Event]] = defaultdict(list)
            for row in rows:
                windows[row.more[0], row.at_ms].append(row)
            return [
                row._replace(more=(*row.more, rank))
                for group in windows.values()
                for rank, row in enumerate(sorted(group, key=_best_first)[: self.count], start=1)
            ]

        return step


@dataclass(frozen=True)
class Join(Step):
    """With the stream `others`, on the key."""

    how: str
    before_ms: int
    after_ms: int

    reads: ClassVar[tuple[str, ...]] = ("others",)

    def fits(self, shape: Shape) -> bool:
        return shape.can_be_joined

    def after(self, shape: Shape) -> Shape:
        return replace(
            shape,
            behind_ms=shape.behind_ms + max(self.before_ms, self.after_ms) + 1,
            is_whole=False,
            is_ordered=False,
            more=(*shape.more, "other"),
            can_be_joined=False,
        )

    def build(self, rows: Operators, shape: Shape, others: Mapping[str, Any]) -> Rows:
        other = others["others"].transform(lambda frame: frame.withColumnRenamed("value", "other"))
        within = (f"{self.before_ms} milliseconds", f"{self.after_ms} milliseconds")
        return rows.rows.join(other, on="key", within=within, how=self.how)  # type: ignore[call-overload,no-any-return]

    def model(self, shape: Shape) -> Model:
        raise NotImplementedError

    def join(self, shape: Shape) -> Callable[[Sequence[Event], Sequence[Event], Times], list[Event]]:
        lefts: list[Event] = []
        rights: list[Event] = []
        given: set[int] = set()
        paired: set[tuple[int, int]] = set()

        def step(left: Sequence[Event], right: Sequence[Event], times: Times) -> list[Event]:
            times = times.behind(shape.behind_ms)
            for rows, kept in ((left, lefts), (right, rights)):
                kept += [row for row in rows if row.at_ms is None or row.at_ms > times.late_ms]
            result = []
            for one, a in enumerate(lefts):
                matches = [other for other, b in enumerate(rights) if self._match(a, b)]
                for other in matches:
                    if (one, other) not in paired:
                        paired.add((one, other))
                        result.append(a._replace(more=(*a.more, rights[other].value)))
                is_over = None in (a.key, a.at_ms) or _at(a) + self.after_ms < times.watermark_ms
                if self.how == "left" and not matches and is_over and one not in given:
                    given.add(one)
                    result.append(a._replace(more=(*a.more, None)))
            return result

        return step

    def _match(self, one: Event, other: Event) -> bool:
        if None in (one.key, other.key, one.at_ms, other.at_ms) or one.key != other.key:
            return False
        return _at(one) - self.before_ms <= _at(other) <= _at(one) + self.after_ms


def _at(row: Event) -> int:
    assert row.at_ms is not None
    return row.at_ms


def _summed(key: str | None, at_ms: int, start_ms: int | None, rows: list[Event]) -> Event:
    values = [row.value for row in rows if row.value is not None]
    more = (len(rows),) if start_ms is None else (start_ms, len(rows))
    return Event(key, sum(values) if values else None, at_ms, more)


def _best_first(row: Event) -> tuple[Any, ...]:
    """By value, the largest first and null last; then by key and number of rows."""
    return (row.value is None, -(row.value or 0), row.key is None, row.key or "", row.more[1])


@dataclass(frozen=True)
class Plan:
    """A chain of steps."""

    steps: tuple[Step, ...]

    @property
    def is_join(self) -> bool:
        return any(isinstance(step, Join) for step in self.steps)

    def shapes(self) -> list[Shape]:
        """The shape of the rows in front of each step, and behind the last."""
        shapes = [Shape()]
        for step in self.steps:
            shapes.append(step.after(shapes[-1]))
        return shapes

    def build(self, events: Operators, others: Operators | None) -> Operators:
        """The plan in a job."""
        rows = events
        for step, shape in zip(self.steps, self.shapes(), strict=False):
            rows = step.build(rows, shape, {"others": others})
        return rows

    def run(self, parts: Sequence[Part], *, waits_for_others: bool) -> list[Counter[Event]]:
        """The rows that come out in each part; the watermark waits for both streams if the job reads both."""
        steps: list[Any] = [
            step.join(shape) if isinstance(step, Join) else step.model(shape)
            for step, shape in zip(self.steps, self.shapes(), strict=False)
        ]
        watermark_ms, results = 0, []
        for part in parts:
            before_ms = watermark_ms
            inputs = [part.events, part.others] if waits_for_others else [part.events]
            watermark_ms = max(watermark_ms, min(map(_progress, inputs)))
            found = self._batch(steps, part, Times(before_ms, before_ms))
            found += self._batch(steps, Part(), Times(before_ms, watermark_ms))
            results.append(consolidated(found))
        return results

    def _batch(self, steps: list[Any], part: Part, times: Times) -> list[Event]:
        rows: Sequence[Event] = part.events
        for step, run in zip(self.steps, steps, strict=True):
            rows = run(rows, part.others, times) if isinstance(step, Join) else run(rows, times)
        return list(rows)


@dataclass(frozen=True)
class Part:
    """The rows of a micro-batch."""

    events: list[Event] = field(default_factory=list)
    others: list[Event] = field(default_factory=list)


def consolidated(rows: Sequence[Event]) -> Counter[Event]:
    """The rows by how often each is there: a row with the weight -1 takes one away."""
    counts: Counter[Event] = Counter()
    for row in rows:
        counts[row._replace(weight=1)] += row.weight
    return Counter({row: count for row, count in counts.items() if count})


def _progress(rows: Sequence[Event]) -> int:
    return max((row.at_ms - DELAY_MS for row in rows if row.at_ms is not None), default=0)


def random_plan(random: Random) -> Plan:
    """Two to five steps, each of which can follow the one before."""
    steps: list[Step] = []
    shape = Shape()
    for _ in range(random.randint(2, 5)):
        step = next(step for step in iter(lambda: _random_step(random), None) if step.fits(shape))
        steps.append(step)
        shape = step.after(shape)
    return Plan(tuple(steps))


def random_parts(random: Random) -> list[Part]:
    """Some parts, whose times are in disorder but move on; the last one closes what is open."""
    parts = []
    for number in range(random.randint(1, 3)):
        first_ms = FIRST_MS + 12_000 * number
        parts.append(Part(_random_events(random, first_ms), _random_events(random, first_ms)))
    end = Event("end", 1, FIRST_MS + 300_000)
    return [*parts, Part([end], [end])]


def _random_events(random: Random, first_ms: int) -> list[Event]:
    rows = []
    for _ in range(random.randint(0, 12)):
        key, value = random.choice(["a", "b", "c", None]), random.randint(-5, 5)
        rows.append(Event(key, value, first_ms + 500 * random.randrange(60)))
    return rows


def _random_step(random: Random) -> Step:
    match random.randrange(8):
        case 0:
            return Filter(random.randint(2, 4))
        case 1:
            return Project(random.randint(-2, 2))
        case 2:
            return Deduplicate(random.choice([0, 1_500, 6_000]))
        case 3:
            return Top(random.randint(1, 2))
        case 4:
            bounds = random.choice([(0, 3_000), (3_000, 0), (2_000, 2_000)])
            return Join(random.choice(["inner", "left"]), *bounds)
        case _:
            return _random_window(random)


def _random_window(random: Random) -> Windowed:
    seconds, by_key = random.choice([2, 5, 10]), random.random() < 0.7
    size_ms, text = 1000 * seconds, f"{seconds} seconds"
    match random.randrange(4):
        case 0:
            return Windowed(tumbling(text), "hopping", size_ms, size_ms, by_key)
        case 1:
            many = random.randint(2, 3)
            window = hopping(f"{many * seconds} seconds", every=text)
            return Windowed(window, "hopping", many * size_ms, size_ms, by_key)
        case 2:
            return Windowed(session(text), "session", size_ms, 0, by_key)
        case _:
            return Windowed(sliding(text), "sliding", size_ms, 0, by_key)
