"""Jobs that were changed, or lost their state, are refused with the reason, and compute nothing wrong."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.streams.rows import Rows
from headrace.streams.windowing import Emit
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)


def click(number: int, minute: int) -> dict[str, Any]:
    return {"id": number, "at": f"2026-01-01T12:{minute:02}:00Z"}


def counting(*more: Column, size: str = "2 minutes", emit: Emit = "on_window_close", **stream: Any) -> App:
    """An application that counts clicks by window."""
    app = App("shop")
    clicks = app.stream(
        "clicks", "id long, at timestamp", event_time="at", watermark_delay="1 minute", **stream
    )
    window = tumbling(size) if emit == "on_window_close" else hopping(size, every="1 minute")

    @app.job(into=app.topic("counts"), name="counts")
    def counts() -> Rows:
        return clicks.window(window).agg(F.count("*").alias("clicks"), *more, emit=emit)

    return app


def refusal(workshop: Workshop, app: App) -> str:
    """Why a job of the application did not run."""
    assert workshop.run_once(app) != 0
    return workshop.recorder.news[-1].text


def test_a_hopping_window_that_spark_computes_may_not_change_its_size(workshop: Workshop) -> None:
    workshop.write("clicks", click(1, 1), click(2, 2))
    assert workshop.run_once(counting(emit="on_window_update")) == 0
    said = refusal(workshop, counting(size="3 minutes", emit="on_window_update"))
    assert "windows of 120 s every 60 s, and now they are windows of 180 s every 60 s" in said
    assert "headrace job reset counts --to start" in said
    assert workshop.run_once(counting(size="120 seconds", emit="on_window_update")) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda: counting(idle_timeout="10 seconds"),
        lambda: counting(metadata=["partition"]),
        lambda: counting(F.stddev("id").alias("spread")),
    ],
    ids=["idle_timeout", "metadata", "stddev"],
)
def test_a_change_of_who_computes_a_window_is_refused_with_the_reason(
    workshop: Workshop, change: Callable[[], App]
) -> None:
    workshop.write("clicks", click(1, 1), click(2, 2))
    assert workshop.run_once(counting()) == 0
    said = refusal(workshop, change())
    assert "it kept state of Headrace's own for panes of windows of 2 minutes" in said
    assert "now it would keep Spark's state for windows of 120 s" in said
    assert "Spark does with idle_timeout=, metadata=" in said
    assert "headrace job reset counts --to start" in said


def deduplicating() -> App:
    app = App("shop")
    clicks = app.stream("clicks", "id long, at timestamp", event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("once"), name="once")
    def once() -> Rows:
        return clicks.deduplicate("id", within="1 hour")

    return app


@pytest.mark.parametrize("lost", ["0", "stage.json"])
def test_a_job_whose_state_is_lost_is_refused_and_doubles_nothing(workshop: Workshop, lost: str) -> None:
    workshop.write("clicks", *(click(number, 1) for number in range(9)))
    assert workshop.run_once(deduplicating()) == 0
    (stage,) = workshop.state.rglob("stage-0")
    (stage / lost).rename(stage / "elsewhere")
    workshop.write("clicks", *(click(number, 2) for number in range(9)))
    said = refusal(workshop, deduplicating())
    assert f"{stage / lost}" in said
    assert "is missing" in said
    (stage / "elsewhere").rename(stage / lost)
    assert workshop.run_once(deduplicating()) == 0
    assert sorted(json.loads(row)["id"] for row in workshop.read("once")) == list(range(9))


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
