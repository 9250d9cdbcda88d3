"""What can be said about streams, topics and jobs, and what is refused before anything runs."""

import doctest
import importlib
from collections.abc import Callable

import pytest

import headrace
from headrace import App
from headrace.errors import Misuse


@pytest.fixture
def app() -> App:
    return App("shop")


@pytest.mark.parametrize(
    "module",
    ["headrace", "headrace.streams.app", "headrace.streams.runner", "headrace.streams.declarations",
     "headrace.streams.supervisor"],
)  # fmt: skip
def test_the_examples_of_a_module_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = headrace.nonsense


def test_jobs_have_the_names_of_their_functions(app: App) -> None:
    @app.job(into=app.topic("large"))
    def large() -> None:
        """Orders above a hundred.

        More about it.
        """

    @app.job(into=app.topic("other"), name="renamed", dead_letter_topic="graveyard")
    def other() -> None: ...

    assert [job.name for job in app.jobs] == ["large", "renamed"]
    assert (large.full_name, large.dead_topic, large.purpose) == (
        "shop.large",
        "large.dead",
        "Orders above a hundred.",
    )
    assert (other.dead_topic, other.purpose) == ("graveyard", "")


MISTAKES: dict[str, Callable[[App], object]] = {
    "cannot be the application's name": lambda _: App("my shop"),
    "cannot be the topic's name": lambda app: app.topic("a b"),
    "use json, csv, text or raw": lambda app: app.stream("t", "a int", format="avro"),  # type: ignore[arg-type]
    "json and csv need a schema": lambda app: app.stream("t"),
    "text and raw have one column": lambda app: app.stream("t", "a int", format="text"),
    "belong together": lambda app: app.stream("t", "a timestamp", event_time="a"),
    "'colour' is not metadata": lambda app: app.stream("t", "a int", metadata=["colour"]),
    "'headers.a b' is not metadata": lambda app: app.stream("t", "a int", metadata=["headers.a b"]),
    "earliest or latest": lambda app: app.stream("t", "a int", start="now"),  # type: ignore[arg-type]
    "max_records is at least 1": lambda app: app.stream("t", "a int", max_records=0),
    "use json or raw": lambda app: app.topic("t", format="csv"),  # type: ignore[arg-type]
    "the key is the column `key`": lambda app: app.topic("t", key="a", format="raw"),
    "a job writes into a topic": lambda app: app.job(into="t"),  # type: ignore[arg-type]
    "use append, update, complete": lambda app: app.job(into=app.topic("t"), name="x", output_mode="x")(
        lambda: 1
    ),  # type: ignore[arg-type]
    "max_dead_letters is": lambda app: app.job(into=app.topic("t"), name="x", max_dead_letters=-1)(lambda: 1),
    "only inside a job": lambda app: app.stream("t", "a int").df,
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_explained(app: App, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        MISTAKES[message](app)


def test_two_jobs_cannot_have_the_same_name(app: App) -> None:
    app.job(into=app.topic("t"), name="x")(lambda: 1)
    with pytest.raises(Misuse, match="two jobs named 'x'"):
        app.job(into=app.topic("t"), name="x")(lambda: 1)
