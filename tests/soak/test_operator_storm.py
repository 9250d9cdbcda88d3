"""A storm over operators that keep state: jobs die again and again, and a view is rebuilt meanwhile."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.processes import BrokerProcess
from tests.soak.pipeline_process import PipelineProcess
from tests.soak.summary import RecordProperty
from tests.spark.transactional_pipeline import read_committed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

CLICKS: Final = 4_000
USERS: Final = 40
CITIES: Final = 5
KILLS: Final = 7
REBUILT_AT: Final = 3
TABLES: Final = ("users", "cities")
JOBS: Final = ("slid", "visits", "answered", "named", "homes")
BEGINNING: Final = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
"""Some hours ago: what is older than a week is taken away by retention."""
BEFORE: Final = BEGINNING - timedelta(days=1)
PIPELINE: Final = """
from pyspark.sql import functions as F
from headrace import App, session, sliding

app = App("storm")
TIME = {"event_time": "at", "watermark_delay": "10 seconds", "max_records": 200}
clicks = app.stream("clicks", "n long, user long, at timestamp", partitions=4, **TIME)
answers = app.stream("answers", "n long, at timestamp", partitions=4, **TIME)
users = app.table("users", "id long, name string, city long", key="id", partitions=4)
cities = app.table("cities", "id long, title string", key="id", partitions=4)


@app.job(into=app.topic("slid", partitions=1))
def slid():
    return clicks.window(sliding("7 seconds"), by="user").agg(F.count("*").alias("c"), F.sum("n").alias("s"))


@app.job(into=app.topic("visits", partitions=1))
def visits():
    return clicks.window(session("3 seconds"), by="user").agg(F.count("*").alias("c"), F.min("n").alias("n"))


@app.job(into=app.topic("answered", partitions=1))
def answered():
    return clicks.join(answers, on="n", within="5 seconds", how="left")


@app.job(into=app.topic("named", partitions=1))
def named():
    return clicks.join(users, on={"user": "id"})


@app.job(into=app.view("homes", key="id", partitions=1))
def homes():
    return users.join(cities, on={"city": "id"})
"""


def at(n: int) -> datetime:
    """When a click happened: ten in a second, and each up to two seconds out of order."""
    return BEGINNING + timedelta(milliseconds=100 * n - (n * 7919 % 2_000))


def user_of(n: int) -> int:
    """Who clicked: some come in bursts, so that sessions end."""
    return (n * n // 30) % USERS


class Input:
    """What is written while the jobs live and die; tables change until the end."""

    def __init__(self, broker: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker})
        self.cities: dict[int, int] = {}
        self.titles: dict[int, str] = {}
        topics = [NewTopic("clicks", 2), NewTopic("answers", 1)]
        compacted = {"cleanup.policy": "compact"}
        topics += [NewTopic(name, 1, config=compacted) for name in TABLES]
        admin = AdminClient({"bootstrap.servers": broker})
        for made in admin.create_topics(topics).values():
            made.result(30)

    def tables(self) -> None:
        """All users and cities, long before the first click."""
        for city in range(CITIES):
            self._title(city, f"city {city}")
        for user in range(USERS):
            self._move(user, user % CITIES)
        assert self._producer.flush(30) == 0

    def clicks(self, ended: threading.Event) -> None:
        """All clicks, answers to every other one, and moves and new titles among them."""
        for n in range(CLICKS):
            self._click(n, at(n))
            if n % 10 == 0:
                self._move(n % USERS, n // 10 % CITIES)
                self._title(n // 10 % CITIES, f"title {n}")
                self._producer.flush(30)
                if not ended.is_set():
                    time.sleep(0.3)
        self._click(CLICKS, at(CLICKS) + timedelta(hours=1))  # it closes all that is open
        assert self._producer.flush(30) == 0

    def _click(self, n: int, time_of: datetime) -> None:
        user = user_of(n)
        self._write("clicks", str(user), {"n": n, "user": user, "at": time_of.isoformat()}, time_of)
        if n % 2 == 0:
            soon = time_of + timedelta(seconds=n % 7)
            self._write("answers", str(n), {"n": n, "at": soon.isoformat()}, soon)

    def _move(self, user: int, city: int) -> None:
        self.cities[user] = city
        self._write("users", str(user), {"id": user, "name": f"user {user}", "city": city})

    def _title(self, city: int, title: str) -> None:
        self.titles[city] = title
        self._write("cities", str(city), {"id": city, "title": title})

    def _write(self, topic: str, key: str, value: dict[str, Any], happened: datetime = BEFORE) -> None:
        self._producer.produce(topic, json.dumps(value), key, timestamp=int(happened.timestamp() * 1000))


def test_operators_with_state_give_each_row_once_though_their_jobs_are_killed(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    record_property("seed", seed)
    record_property("kills", KILLS)
    ended = threading.Event()
    with BrokerProcess(tmp_path / "data") as kafka:
        given = Input(kafka.address)
        given.tables()
        writer = threading.Thread(target=given.clicks, args=(ended,))
        writer.start()
        pipeline = PipelineProcess(tmp_path, PIPELINE, HEADRACE_BROKER=kafka.address)
        pipeline.start()
        for number in range(KILLS):
            pipeline.wait_until_running(*JOBS)
            time.sleep(chance.uniform(0, 20))
            pipeline.kill()
            if number == REBUILT_AT:
                pipeline.command("job", "reset", "homes", "--to", "start", "--rebuild", "--yes")
            pipeline.start()
        pipeline.kill()
        ended.set()
        writer.join()
        pipeline.finish()
        check(given, kafka.address)


def check(given: Input, broker: str) -> None:
    """Every topic holds what plain Python says, and nothing twice."""
    clicks = [(n, user_of(n), at(n)) for n in range(CLICKS)]
    assert rows_of(broker, "slid", "user", "at", "c", "s") == Counter(slides(clicks))
    assert rows_of(broker, "visits", "user", "n", "c") == Counter(visits(clicks))
    assert rows_of(broker, "answered", "n", "answers_at") == Counter((n, answer_to(n)) for n, _, _ in clicks)
    assert rows_of(broker, "named", "n", "name") == Counter((n, f"user {user}") for n, user, _ in clicks)
    homes = {row["id"]: (row["city"], row["title"]) for row in documents(broker, "homes")}
    assert homes == {user: (city, given.titles[city]) for user, city in given.cities.items()}


def answer_to(n: int) -> datetime | None:
    """When a click was answered within five seconds, if it was."""
    return at(n) + timedelta(seconds=n % 7) if n % 2 == 0 and n % 7 <= 5 else None


def slides(clicks: list[tuple[int, int, datetime]]) -> Iterator[tuple[int, datetime, int, int]]:
    """For each click, how many of its user's there were in the seven seconds up to it, and their sum."""
    for _, user, time_of in clicks:
        since = time_of - timedelta(seconds=7)
        seen = [n for n, other, when in clicks if other == user and since < when <= time_of]
        yield user, time_of, len(seen), sum(seen)


def visits(clicks: list[tuple[int, int, datetime]]) -> Iterator[tuple[int, int, int]]:
    """Each user's clicks that are at most three seconds apart, as the first of them and their number."""
    for user in range(USERS):
        times = sorted((when, n) for n, who, when in clicks if who == user)
        gaps = [0, *(1 + m for m, (one, two) in enumerate(pairwise(times)) if is_apart(one[0], two[0]))]
        for start, end in pairwise([*gaps, len(times)]):
            visit = [n for _, n in times[start:end]]
            if visit:
                yield user, min(visit), len(visit)


def is_apart(one: datetime, other: datetime) -> bool:
    """Whether two clicks belong to two visits."""
    return other - one > timedelta(seconds=3)


def documents(broker: str, topic: str) -> list[dict[str, Any]]:
    """The committed rows of a topic that has one partition, without those of the last click."""
    (values,) = read_committed(broker, topic, 1)
    rows = [json.loads(value) for value in values]
    return [row for row in rows if row.get("n") != CLICKS]


def rows_of(broker: str, topic: str, *names: str) -> "Counter[tuple[Any, ...]]":
    """How often each row is in a topic."""
    return Counter(tuple(_cell(name, row[name]) for name in names) for row in documents(broker, topic))


def _cell(name: str, value: Any) -> Any:
    return datetime.fromisoformat(value) if value is not None and name.endswith("at") else value
