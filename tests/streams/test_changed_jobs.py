"""Jobs that were changed, or lost their state, are refused with the reason, and compute nothing wrong."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.streams.rows import Rows
from headrace.streams.window_operator import Emit
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)


def click(number: int, minute: int) -> dict[str, Any]:
    return {"id": number, "at": f"2026-01-01T12:{minute:02}:00Z"}


def counting(
    *more: Column,
    size: str = "2 minutes",
    emit: Emit = "on_window_close",
    schema: str = "id long, at timestamp",
    **stream: Any,
) -> App:
    """An application that counts clicks by window."""
    app = App("shop")
    clicks = app.stream("clicks", schema, event_time="at", watermark_delay="1 minute", **stream)
    window = tumbling(size) if emit == "on_window_close" else hopping(size, every="1 minute")

    @app.job(into=app.topic("counts", key="window_start"), name="counts")
    def counts() -> Rows:
        return clicks.window(window).agg(F.count("*").alias("clicks"), *more, emit=emit)

    return app


def refusal(workshop: Workshop, app: App) -> str:
    """Why a job of the application did not run."""
    assert workshop.run_once(app) != 0
    return workshop.recorder.news[-1].text


@pytest.mark.parametrize("emit", ["on_window_close", "on_window_update"])
def test_a_window_may_not_change_its_size(workshop: Workshop, emit: Emit) -> None:
    workshop.write("clicks", click(1, 1), click(2, 2))
    assert workshop.run_once(counting(emit=emit)) == 0
    said = refusal(workshop, counting(size="3 minutes", emit=emit))
    assert "windows of 120 s" in said
    assert "windows of 180 s" in said
    assert "headrace job reset counts --to start" in said
    assert workshop.run_once(counting(size="120 seconds", emit=emit)) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda: counting(idle_timeout="10 seconds"),
        lambda: counting(metadata=["partition"]),
        lambda: counting(F.stddev("id").alias("spread"), F.collect_list("id").alias("all")),
        lambda: counting(max_records=1),
    ],
    ids=["idle_timeout", "metadata", "more aggregates", "max_records"],
)
def test_a_window_goes_on_from_its_state_when_the_rest_of_the_job_changes(
    workshop: Workshop, change: Callable[[], App]
) -> None:
    workshop.write("clicks", click(1, 1), click(2, 2))
    assert workshop.run_once(counting()) == 0
    workshop.write("clicks", click(3, 3), click(4, 9))
    assert workshop.run_once(change()) == 0
    found = [json.loads(row) for row in workshop.read("counts")]
    counts = sorted((row["window_start"][11:16], row["clicks"]) for row in found)
    assert counts == [("12:00", 1), ("12:02", 2)]


def test_an_aggregate_that_is_added_covers_the_rows_after_the_change(workshop: Workshop) -> None:
    workshop.write("clicks", click(1, 2))
    assert workshop.run_once(counting()) == 0
    workshop.write("clicks", click(7, 3), click(4, 9))
    assert workshop.run_once(counting(F.sum("id").alias("ids"), F.max("id").alias("most"))) == 0
    (found,) = (json.loads(row) for row in workshop.read("counts"))
    assert (found["clicks"], found["ids"], found["most"]) == (2, 7, 7)


def test_a_column_that_is_aggregated_may_not_change_its_type(workshop: Workshop) -> None:
    workshop.write("clicks", click(1, 2))
    total = F.sum("id").alias("ids")
    assert workshop.run_once(counting(total)) == 0
    said = refusal(workshop, counting(total, schema="id double, at timestamp"))
    assert "kept id.sum as bigint for windows of 120 s every 120 s, and now it is double" in said


def deduplicating() -> App:
    app = App("shop")
    clicks = app.stream("clicks", "id long, at timestamp", event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("once"), name="once")
    def once() -> Rows:
        return clicks.deduplicate("id", within="1 hour")

    return app


@pytest.mark.parametrize("lost", ["0", "operator.json"])
def test_a_job_whose_state_is_lost_is_refused_and_doubles_nothing(workshop: Workshop, lost: str) -> None:
    workshop.write("clicks", *(click(number, 1) for number in range(9)))
    assert workshop.run_once(deduplicating()) == 0
    (stage,) = workshop.state.rglob("deduplicate-1")
    (stage / lost).rename(stage / "elsewhere")
    workshop.write("clicks", *(click(number, 2) for number in range(9)))
    said = refusal(workshop, deduplicating())
    assert f"{stage / lost}" in said
    assert "is missing" in said
    (stage / "elsewhere").rename(stage / lost)
    assert workshop.run_once(deduplicating()) == 0
    assert sorted(json.loads(row)["id"] for row in workshop.read("once")) == list(range(9))


def test_a_table_join_can_be_added_to_a_job_that_has_run(workshop: Workshop) -> None:
    def naming(*, is_named: bool) -> App:
        app = App("shop")
        clicks = app.stream("clicks", "id long, at timestamp", event_time="at", watermark_delay="1 minute")
        users = app.table("users", "id long, name string", key="id")

        @app.job(into=app.topic("named"), name="named")
        def named() -> Rows:
            counts = clicks.window(tumbling("2 minutes"), by="id").agg(F.count("*").alias("clicks"))
            return counts.join(users, on="id", as_of="latest") if is_named else counts

        return app

    workshop.write("users", {"id": 1, "name": "Ada"})
    workshop.write("clicks", click(1, 1))
    assert workshop.run_once(naming(is_named=False)) == 0
    workshop.write("clicks", click(1, 1), click(1, 9))
    assert workshop.run_once(naming(is_named=True)) == 0, workshop.recorder.news
    (found,) = (json.loads(row) for row in workshop.read("named"))
    assert (found["clicks"], found["name"]) == (2, "Ada")


def test_a_job_whose_copy_of_a_table_is_lost_is_refused(workshop: Workshop) -> None:
    def naming() -> App:
        app = App("shop")
        clicks = app.stream("clicks", "id long, at timestamp")
        users = app.table("users", "id long, name string", key="id")

        @app.job(into=app.topic("named"), name="named")
        def named() -> Rows:
            return clicks.join(users, on="id", as_of="latest")

        return app

    workshop.write("users", {"id": 1, "name": "Ada"})
    workshop.write("clicks", click(1, 1))
    assert workshop.run_once(naming()) == 0
    (copy,) = workshop.state.rglob("tables/users")
    copy.rename(copy.with_name("elsewhere"))
    workshop.write("clicks", click(1, 2))
    said = refusal(workshop, naming())
    assert f"{copy} does not hold the table of 'users' as the last batch left it" in said
    copy.rmdir()
    copy.with_name("elsewhere").rename(copy)
    assert workshop.run_once(naming()) == 0
    assert [json.loads(row)["name"] for row in workshop.read("named")] == ["Ada", "Ada"]


def joining_names(*order: str, names: bool = True) -> App:
    """The first click and the first view of each id; the two have equal columns."""
    app = App("shop")
    options: dict[str, Any] = {"event_time": "at", "watermark_delay": "1 minute"}
    streams = {topic: app.stream(topic, "id long, at timestamp", **options) for topic in order}

    @app.job(into=app.topic("once"), name="once")
    def once() -> DataFrame:
        made = {
            topic: stream.deduplicate("id", within="1 hour", name=topic if names else None)
            for topic, stream in streams.items()
        }
        clicks, views = (made[topic].df.withColumn("topic", F.lit(topic)) for topic in ("clicks", "views"))
        return clicks.unionByName(views)

    return app


def test_operators_with_names_may_be_called_in_another_order(workshop: Workshop) -> None:
    workshop.write("clicks", click(1, 1))
    workshop.write("views", click(2, 1))
    assert workshop.run_once(joining_names("clicks", "views")) == 0
    for topic in ("clicks", "views"):
        workshop.write(topic, click(1, 2), click(2, 2))
    assert workshop.run_once(joining_names("views", "clicks")) == 0, workshop.recorder.news
    found = [json.loads(row) for row in workshop.read("once")]
    assert sorted((row["topic"], row["id"]) for row in found) == [
        ("clicks", 1), ("clicks", 2), ("views", 1), ("views", 2)
    ]  # fmt: skip
    said = refusal(workshop, joining_names("views", "clicks", names=False))
    assert "it kept state for clicks (rows that passed" in said
    assert "and has no such operator any more" in said


@pytest.mark.parametrize(
    ("names", "says"),
    [(("a", "a"), "two operators have the name 'a'"), (("a/b", "c"), "name='a/b' cannot be an operator's")],
)
def test_names_of_operators_are_checked(workshop: Workshop, names: tuple[str, str], says: str) -> None:
    app = App("shop")
    clicks = app.stream("clicks", "id long, at timestamp", event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("counts"), name="counts")
    def counts() -> Rows:
        first = clicks.deduplicate("id", within="1 hour", name=names[0])
        return first.window(tumbling("1 minute")).agg(F.count("*").alias("clicks"), name=names[1])

    assert says in refusal(workshop, app)
