"""Streams joined with tables: the row that counted at the time of an event, whatever came first."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, tumbling
from headrace.errors import Misuse
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS
from tests.streams.table_reference import Row, Version, join_as_of
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)

TEN = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)
ACTIVITY = "user int, action string, at timestamp"
USERS = "id long, name string, city string, since timestamp"


def at(minute: float) -> datetime:
    return TEN + timedelta(minutes=minute)


def event(user: int | None, minute: float, action: str = "LoggedIn") -> Row:
    return {"user": user, "action": action, "at": at(minute)}


def user(number: int, city: str, minute: float, name: str = "Alice") -> Row:
    return {"id": number, "name": name, "city": city, "since": at(minute)}


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def joined_job(app: App, **options: Any) -> Job:
    activity = app.stream("activity", ACTIVITY, event_time="at", watermark_delay="1 minute")
    users = app.table("users", USERS, key="id", valid_from="since")

    @app.job(into=app.topic("joined", key="user"))
    def joined() -> Rows:
        return activity.join(users, on={"user": "id"}, **options)

    return joined


def test_activity_joins_the_profile_of_its_user(app: App) -> None:
    activity = app.stream(
        "activity", "user long, action string, at timestamp", event_time="at", watermark_delay="1 minute"
    )
    profiles = app.table("profiles", "id long, name string, age int", key="id")

    @app.job(into=app.topic("joined", key="user"))
    def joined() -> Rows:
        return activity.join(profiles, on={"user": "id"})

    before = at(-60)  # a record's own time says since when its row counts
    rows = run(
        joined,
        {
            "activity": [event(1, 0, "LoggedIn"), event(2, 5, "ViewedProduct")],
            "profiles": [
                ("1", {"id": 1, "name": "Alice", "age": 28}, before),
                ("2", {"id": 2, "name": "Bob", "age": 35}, before),
            ],
        },
    )
    assert in_order(rows) == [
        {"user": 1, "action": "LoggedIn", "at": at(0), "name": "Alice", "age": 28},
        {"user": 2, "action": "ViewedProduct", "at": at(5), "name": "Bob", "age": 35},
    ]


def moves(number: int) -> list[Row]:
    return [user(number, "Rome", -60), user(number, "Oslo", 3)]


def events_of(number: int) -> list[Row]:
    return [event(number, 4), event(number, 2)]


END = event(9, 60)


def test_alice_moves_and_her_events_join_where_she_lived_then(app: App) -> None:
    """Whatever comes first: 1 has her table first, 2 her events, 3 both at once; and a batch is repeated."""
    parts = [
        {"users": moves(1), "activity": events_of(2)},
        {"users": moves(2)[::-1], "activity": events_of(1)},
        {"users": moves(3), "activity": [*events_of(3), END]},
    ]
    rows = run(joined_job(app, delay="5 minutes"), parts, crash=("computed", 2))
    assert len(rows) == 6
    for number in (1, 2, 3):
        found = [(row["at"], row["city"]) for row in rows if row["user"] == number]
        assert found == [(at(2), "Rome"), (at(4), "Oslo")]
    assert event(1, 2) | {"name": "Alice", "city": "Rome", "since": at(-60)} in rows


@pytest.mark.soak
@pytest.mark.parametrize("step", TOPIC_STEPS)
def test_a_crash_at_any_step_changes_nothing(app: App, step: str) -> None:
    parts = [{"users": moves(1)[:1], "activity": events_of(1)}, {"users": moves(1)[1:], "activity": [END]}]
    rows = run(joined_job(app, delay="5 minutes"), parts, crash=(step, 2))
    assert [(row["at"], row["city"]) for row in rows] == [(at(2), "Rome"), (at(4), "Oslo")]


def test_without_waiting_an_event_sees_what_is_there_when_it_comes(app: App) -> None:
    """And with the latest it sees the newest row, which an inner join leaves out where there is none."""
    activity = app.stream("activity", ACTIVITY, event_time="at", watermark_delay="1 hour")
    users = app.table("users", USERS, key="id", valid_from="since")

    @app.job(into=app.topic("joined"))
    def joined() -> DataFrame:
        then = activity.join(users, on={"user": "id"}).df.withColumn("as_of", F.lit("event"))
        now = activity.join(users, on={"user": "id"}, as_of="latest", how="inner").df
        return then.union(now.withColumn("as_of", F.lit("latest")))

    parts = [
        {"activity": [event(1, 2)], "users": [user(1, "Rome", 0), b"garbled", user(2, "Lima", 0)]},
        {
            "activity": [event(1, 9), event(1, 2), event(None, 2), event(3, 2), event(2, 8), event(2, 9)],
            "users": [user(1, "Oslo", 1), ("2", None, at(9)), user(1, "Bern", 30)],
        },
    ]
    rows = run(joined, parts, crash=("written", 2))

    def seen(as_of: str) -> list[Any]:
        return in_order([(row["user"], row["at"], row["city"]) for row in rows if row["as_of"] == as_of])

    assert seen("event") == in_order(
        [
            (1, at(2), "Rome"),
            (1, at(9), "Oslo"),
            (1, at(2), "Oslo"),
            (None, at(2), None),
            (3, at(2), None),
            (2, at(8), "Lima"),
            (2, at(9), None),
        ]
    )
    assert seen("latest") == in_order([(1, at(2), "Rome"), (1, at(9), "Bern"), (1, at(2), "Bern")])
    assert [(letter["topic"], letter["value"]) for letter in rows.dead] == [("users", b"garbled")]


def test_keys_can_be_texts_decimals_times_and_several_columns(app: App) -> None:
    events = app.stream("events", "code string, price decimal(12,3), day timestamp, n double")
    names = app.table("names", "code string, name string", key="code")
    prices = app.table("prices", "price decimal(10,2), label string, code string", key="price")
    days = app.table("days", "day timestamp, holiday boolean, tags array<string>", key="day")
    both = app.table("both", "code string, n long, label string", key=["n", "code"])

    @app.job(into=app.topic("joined"))
    def joined() -> Rows:
        rows = events.join(names, on="code", as_of="latest").join(prices, on="price", as_of="latest")
        return rows.join(days, on="day", as_of="latest").join(both, on=["code", "n"], as_of="latest")

    tables: dict[str, Any] = {
        "names": [{"code": "ä", "name": "A"}, {"code": "b", "name": "B"}, ("b", None)],
        "prices": [
            {"price": "1.50", "label": "cheap", "code": "x"},
            {"price": 2, "label": "two"},
            ("2.00", None),
        ],
        "days": [
            {"day": TEN, "holiday": True, "tags": ["a", None]},
            {"day": at(1), "holiday": False, "tags": None},
            ("2026-01-01 10:01:00", None),
        ],
        "both": [
            {"code": "ä", "n": 1, "label": "one"},
            {"code": "b", "n": 2, "label": "gone"},
            ('{"n":2,"code":"b"}', None),
        ],
    }
    inputs = [
        {"code": "ä", "price": "1.5", "day": TEN, "n": 1},
        {"code": "b", "price": "2.000", "day": at(1), "n": 2},
        {"code": "ä", "price": "1.501", "day": at(2), "n": 1.5},
    ]
    rows = run(joined, tables | {"events": inputs})
    none = {
        "name": None,
        "label": None,
        "prices_code": None,
        "holiday": None,
        "tags": None,
        "both_label": None,
    }
    assert rows == [
        {"code": "ä", "price": Decimal("1.500"), "day": TEN, "n": 1.0, "name": "A", "label": "cheap"}
        | {"prices_code": "x", "holiday": True, "tags": ["a", None], "both_label": "one"},
        {"code": "b", "price": Decimal("2.000"), "day": at(1), "n": 2.0} | none,
        {"code": "ä", "price": Decimal("1.501"), "day": at(2), "n": 1.5} | none | {"name": "A"},
    ]


def test_a_window_can_follow_and_a_table_can_be_a_stream_of_the_same_job(app: App) -> None:
    moves = app.stream("users", USERS, event_time="since", watermark_delay="1 minute")
    users = app.table("users", USERS, key="id", valid_from="since")

    @app.job(into=app.topic("counts"))
    def counts() -> DataFrame:
        rows = moves.join(users, on="id").transform(lambda df: df.filter("users_city is not null"))
        counted = rows.df.groupBy(F.window("since", "10 minutes"), "users_city").count()
        return counted.select("users_city", "count")

    rows = run(
        counts, {"users": [user(1, "Rome", 0), user(1, "Oslo", 3), user(2, "Oslo", 4), user(3, "Lima", 60)]}
    )
    assert in_order(rows) == [{"users_city": "Oslo", "count": 2}, {"users_city": "Rome", "count": 1}]


minutes = st.integers(0, 30)
changes = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["Rome", "Oslo", None]), minutes),
    min_size=5,
    max_size=25,
    unique_by=lambda change: (change[0], change[2]),
)
arrivals = st.lists(st.tuples(st.integers(1, 6), minutes), min_size=10, max_size=40)


def check_against_the_reference(
    moves: list[Any], events: list[Any], cuts: tuple[int, int], crash: tuple[str, int] | None
) -> None:
    table = [_change(*move) for move in moves]
    stream = [event(number, minute) for number, minute in events]
    parts = [
        {"activity": stream[: cuts[0]], "users": table[: cuts[1]]},
        {"activity": [*stream[cuts[0] :], event(9, 300)], "users": table[cuts[1] :]},
    ]
    rows = run(joined_job(App("shop"), delay="1 hour"), parts, crash=crash)
    versions = [
        Version(number, at(minute), None if city is None else user(number, city, minute))
        for number, city, minute in moves
    ]
    expected = join_as_of(stream, versions, key="user", time="at", columns=["name", "city", "since"])
    assert in_order(rows) == in_order(expected)


def test_events_that_wait_join_as_the_reference_says(spark: SparkSession) -> None:
    chance = Random(1)
    known = [(number, minute) for number in range(1, 9) for minute in range(31)]
    moves = [(*each, chance.choice(["Rome", "Oslo", None])) for each in chance.sample(known, 120)]
    events = [(chance.randint(1, 10), chance.randint(0, 30)) for _ in range(300)]
    check_against_the_reference(
        [(number, city, minute) for number, minute, city in moves], events, (150, 60), ("committed", 1)
    )


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    moves=changes,
    events=arrivals,
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 25)),
    crash=st.one_of(st.none(), st.sampled_from([(step, 1) for step in TOPIC_STEPS])),
)
def test_many_events_that_wait_join_as_the_reference_says(
    spark: SparkSession, moves: list[Any], events: list[Any], cuts: tuple[int, int], crash: Any
) -> None:
    check_against_the_reference(moves, events, cuts, crash)


def _change(number: int, city: str | None, minute: int) -> Any:
    key, time = str(number), at(minute)
    return (key, None, time) if city is None else (key, user(number, city, minute), time)


def build(spark: SparkSession, job: Job) -> Rows:
    return job.build(spark, "127.0.0.1:9")[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"as_of": "now"}, "as_of='now'"),
        ({"how": "full"}, "a stream joins a table as left or inner"),
        ({"delay": "soon"}, "delay is 'soon'"),
    ],
)
def test_options_that_are_not_known_are_refused(
    app: App, spark: SparkSession, options: Any, reason: str
) -> None:
    with pytest.raises(Misuse, match=reason):
        build(spark, joined_job(app, **options))


def test_what_cannot_be_joined_is_explained(app: App, spark: SparkSession) -> None:
    timeless = app.stream("timeless", "id long, name string")
    timed = app.stream("timed", "id long, at timestamp", event_time="at", watermark_delay="1 minute")
    users = app.table("users", "id long, part long, name string", key=["id", "part"])
    broken = app.table("broken", "id lang", key="id")
    other = app.table("users", "id long, name string", key="id")
    attempts = {
        'as_of="latest"': lambda: timeless.join(users, on={"id": "id", "name": "part"}),
        "found by their whole key": lambda: timed.join(users, on="id"),
        "is not a schema": lambda: timed.join(broken, on="id"),
        "'part', which its left side does not have": lambda: timed.join(users, on=["id", "part"]),
        "two definitions that differ": lambda: timed.join(other, on="id").join(
            app.table("users", "id long, name string, age int", key="id"), on="id"
        ),
    }
    for number, (reason, attempt) in enumerate(attempts.items()):
        job = app.job(into=app.topic("out"), name=f"job{number}")(attempt)
        with pytest.raises(Misuse, match=reason):
            build(spark, job)
    with pytest.raises(Misuse, match="history_retention of the table of 'users' is 'for ever'"):
        app.table("users", "id long", key="id", history_retention="for ever")


@pytest.mark.parametrize("crash", [None, ("computed", 1)], ids=["whole", "crash"])
def test_what_names_no_row_of_the_table_is_a_dead_letter_once(
    app: App, crash: tuple[str, int] | None
) -> None:
    rows = run(
        joined_job(app),
        [
            {"activity": [event(1, 0)], "users": ["nonsense", user(1, "Rome", -5), None]},
            {"activity": [event(1, 1)], "users": [{"name": "Nobody"}, user(2, "Oslo", 0)]},
        ],
        crash=crash,
    )
    assert [row["city"] for row in rows] == ["Rome", "Rome"]
    assert [(letter["topic"], letter["offset"], letter["value"]) for letter in rows.dead] == [
        ("users", 0, b"nonsense"),
        ("users", 2, None),
        ("users", 3, b'{"name": "Nobody"}'),
    ]
    assert [letter["reason"] for letter in rows.dead[1:]] == [
        "the record's key names no row",
        "the key (id) is null",
    ]


def test_jobs_with_tables_in_one_process_have_connections_of_their_own(workshop: Workshop, app: App) -> None:
    activity = app.stream("activity", "user long, action string", max_records=5)

    def define(number: int) -> None:
        table = app.table(f"users{number}", "id long, name string", key="id")

        @app.job(into=app.topic(f"joined{number}"), name=f"joined{number}")
        def joined() -> Rows:
            return activity.join(table, on={"user": "id"}, as_of="latest")

    workshop.write("activity", *({"user": user, "action": "LoggedIn"} for user in range(20)))
    for number in range(4):
        define(number)
        workshop.write(f"users{number}", *({"id": user, "name": f"{number}-{user}"} for user in range(20)))
    assert workshop.run_once(app) == 0, workshop.recorder.news
    for number in range(4):
        names = sorted(json.loads(row)["name"] for row in workshop.read(f"joined{number}"))
        assert names == sorted(f"{number}-{user}" for user in range(20))


def test_windows_and_joins_wait_for_rows_that_have_waited_for_a_table(app: App) -> None:
    activity = app.stream("activity", ACTIVITY, event_time="at", watermark_delay="1 minute")
    users = app.table("users", USERS, key="id", valid_from="since")

    @app.job(into=app.topic("counts"))
    def counts() -> Rows:
        joined = activity.join(users, on={"user": "id"}, delay="5 minutes")
        return joined.window(tumbling("4 minutes"), by="city").agg(F.count("*").alias("events"))

    parts = [
        {"activity": [*events_of(1), event(9, 6)]},
        {"users": moves(1), "activity": [event(1, 3.5), event(9, 8)]},
        {"activity": [END]},
    ]
    rows = run(counts, parts)
    found = {(row["window_start"], row["city"], row["events"]) for row in rows}
    assert found == {
        *((at(0), "Rome", 1), (at(0), "Oslo", 1), (at(4), "Oslo", 1), (at(4), None, 1), (at(8), None, 1))
    }
    assert rows.dropped == 0


def test_the_result_of_a_window_joins_the_version_that_counted_just_before_its_end(app: App) -> None:
    activity = app.stream("activity", ACTIVITY, event_time="at", watermark_delay="1 minute")
    users = app.table("users", USERS, key="id", valid_from="since")

    @app.job(into=app.topic("counts"))
    def counts() -> Rows:
        windows = activity.window(tumbling("3 minutes"), by="user").agg(F.count("*").alias("events"))
        return windows.join(users, on={"user": "id"})

    rows = run(counts, [{"users": moves(1), "activity": [event(1, 2), event(1, 4)]}, {"activity": [END]}])
    found = [(row["window_end"], row["city"]) for row in rows if row["user"] == 1]
    assert found == [(at(3), "Rome"), (at(6), "Oslo")]
