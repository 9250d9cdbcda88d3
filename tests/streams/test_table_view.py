"""Views over tables: whatever changes in a table, the view is right after the batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.engine.description import IncompatibleChange
from headrace.engine.planner import Planner
from headrace.errors import Misuse
from headrace.state.operators import OperatorManifest, write_operator
from headrace.streams.job import Job
from headrace.streams.table import Table
from headrace.streams.table_view import TableView, ViewLayout
from headrace.streams.topic import Topic
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS
from tests.tables.view_reference import Hop, Row, Said, Tables, apply, differences, whole_view

pytestmark = pytest.mark.timeout(600)

Build = Callable[["Office"], TableView]


class Office:
    """The tables of a firm."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.employees = app.table("employees", "id long, name string, dept long", key="id")
        self.departments = app.table("departments", "id long, title string, place long", key="id")
        self.places = app.table("places", "id long, city string", key="id")

    def job(self, build: Build, into: Topic) -> Job:
        @self.app.job(into=into)
        def staff() -> TableView:
            return build(self)

        return staff

    def log(self, build: Build) -> Job:
        """A job into a plain topic, which shows of a row that is gone which one it was."""
        return self.job(build, self.app.topic("staff", key="id"))


def employee(number: int, name: str, dept: int | None) -> Said:
    return Said("employees", number, {"id": number, "name": name, "dept": dept})


def department(number: int, title: str, place: int | None = None) -> Said:
    return Said("departments", number, {"id": number, "title": title, "place": place})


def gone(topic: str, number: int) -> Said:
    return Said(topic, number, None)


def inputs(*batches: Sequence[Said]) -> list[dict[str, list[Any]]]:
    """The batches as `run` takes them."""
    topics = ("employees", "departments", "places")
    return [
        {topic: [(str(each.key), each.row) for each in batch if each.topic == topic] for topic in topics}
        for batch in batches
    ]


def test_bob_moves_department_1_is_renamed_and_department_2_is_deleted(app: App) -> None:
    app = App("shop")
    employees = app.table("employees", "id long, name string, dept long", key="id")
    departments = app.table("departments", "id long, title string", key="id")

    @app.job(into=app.view("staff", key="id"))
    def staff() -> TableView:
        return employees.join(departments, on={"dept": "id"}, how="inner")

    rows = run(
        staff,
        inputs(
            [
                employee(1, "Alice", 1),
                employee(2, "Bob", 2),
                department(1, "Human Resources"),
                department(2, "Information Technology"),
            ],
            [employee(2, "Bob", 1)],
            [department(1, "People"), gone("departments", 2)],
        ),
    )
    steps = [tuple(row.values()) for row in rows]
    assert steps == [
        (1, "Alice", 1, "Human Resources"),
        (2, "Bob", 2, "Information Technology"),
        (2, "Bob", 1, "Human Resources"),
        (1, "Alice", 1, "People"),
        (2, "Bob", 1, "People"),
    ]
    assert sorted({step[0]: step for step in steps}.values()) == [
        (1, "Alice", 1, "People"),
        (2, "Bob", 1, "People"),
    ]


def test_a_row_that_no_longer_belongs_to_a_view_is_deleted_from_it(app: App) -> None:
    """Its department is gone, it is gone itself, or a function does not let it pass any more."""
    office = Office(app)

    def loud(office: Office) -> TableView:
        joined = office.employees.join(office.departments, on={"dept": "id"}, how="inner")
        named = joined.transform(lambda df: df.filter("title not like 'Secret%'"))
        return named.transform(lambda df: df.select("id", F.upper("name").alias("name"), "title"))

    start = [department(1, "Sales"), department(2, "Tea"), employee(1, "Alice", 1), employee(2, "Bob", 2)]
    rows = run(
        office.job(loud, app.view("loud", key="id")),
        inputs(
            [*start, employee(3, "Eve", 1)],
            [department(1, "Secret sales"), department(2, "Tea", 5)],
            [department(1, "Sales"), gone("departments", 2), gone("employees", 3)],
        ),
    )
    alice = {"id": 1, "name": "ALICE", "title": "Sales"}
    bob, eve = alice | {"id": 2, "name": "BOB", "title": "Tea"}, alice | {"id": 3, "name": "EVE"}
    assert sorted(rows[:3], key=str) == [alice, bob, eve]
    assert rows[3:5] == [None, None]
    assert sorted(rows[5:], key=str) == [None, alice]


texts = st.sampled_from(["a", "b"])
foreign = st.one_of(st.none(), st.integers(0, 5))


def records(topic: str, keys: int, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[Said]:
    def said(key: int, row: Row | None) -> Said:
        return Said(topic, key, None if row is None else {"id": key} | row)

    rows = st.one_of(st.none(), *[st.fixed_dictionaries(columns)] * 3)
    return st.builds(said, st.integers(0, keys), rows)


batches = st.lists(
    st.lists(
        st.one_of(
            records("employees", 8, name=texts, dept=foreign),
            records("departments", 4, title=texts, place=foreign),
            records("places", 4, city=texts),
        ),
        min_size=6,
        max_size=30,
    ),
    min_size=2,
    max_size=4,
)
hows = st.tuples(*[st.sampled_from(["left", "inner"])] * 2)


def check_view(added: list[list[Said]], hows: Any, step: str) -> None:
    """A job over three tables that crashes once writes the differences of the completely recomputed view."""

    def build(office: Office) -> TableView:
        joined = office.employees.join(office.departments, on={"dept": "id"}, how=hows[0])
        return joined.join(office.places, on={"place": "id"}, how=hows[1])

    hops = [
        Hop("dept", "departments", {"title": "title", "place": "place"}, hows[0]),
        Hop("place", "places", {"city": "city"}, hows[1]),
    ]
    tables: Tables = {"employees": {}, "departments": {}, "places": {}}
    expected, before = [], dict[int, Row]()
    for batch in added:
        apply(tables, batch)
        after = whole_view(tables, "employees", hops)
        expected += differences(before, after)
        before = after
    job = Office(App("shop")).log(build)
    assert run(job, inputs(*added), crash=(step, len(added) - 1)) == expected


def test_a_view_over_three_tables_is_what_dicts_say_also_over_a_crash(spark: SparkSession) -> None:
    chance = Random(3)

    def said() -> Said:
        key, text, other = chance.randint(0, 20), chance.choice("ab"), chance.choice([None, *range(9)])
        topic, row = chance.choice(
            [
                ("employees", {"id": key, "name": text, "dept": other}),
                ("departments", {"id": key, "title": text, "place": other}),
                ("places", {"id": key, "city": text}),
            ]
        )
        return Said(topic, key, row if chance.random() < 0.8 else None)

    check_view([[said() for _ in range(count)] for count in (150, 60)], ("inner", "left"), "written")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(added=batches, hows=hows, step=st.sampled_from(TOPIC_STEPS))
def test_many_views_over_three_tables_are_what_dicts_say(
    spark: SparkSession, added: list[list[Said]], hows: Any, step: str
) -> None:
    check_view(added, hows, step)


def other_departments(app: App) -> Table:
    return app.table("departments", "id string, title string", key="id")


MISTAKES: dict[str, tuple[Build, str]] = {
    "a column that is not there": (
        lambda office: office.employees.join(office.departments, on={"team": "id"}),
        "compares 'team', which its left side does not have",
    ),
    "not the whole key": (
        lambda office: office.employees.join(office.departments, on={"name": "title"}),
        "found by their whole key, which is 'id'",
    ),
    "types that differ": (
        lambda office: office.employees.join(other_departments(office.app), on={"dept": "id"}),
        "'dept' of the table of 'employees', which is bigint, with 'id' of 'departments', which is string",
    ),
    "two definitions": (
        lambda office: office.employees.join(office.departments, on={"dept": "id"}).join(
            other_departments(office.app), on={"name": "id"}
        ),
        "by two definitions that differ",
    ),
    "a stream": (
        lambda office: office.employees.join(office.app.stream("s", "id long"), on="id"),  # type: ignore[arg-type]
        "begin with the stream",
    ),
    "another way to join": (
        lambda office: office.employees.join(office.departments, on="id", how="full"),  # type: ignore[arg-type]
        "as left or inner",
    ),
    "a window": (
        lambda office: office.employees.join(office.departments, on="id").window(None),
        r"window\(\) cannot follow a join of tables",
    ),
    "an aggregation": (
        lambda office: office.employees.join(office.departments, on="id").transform(
            lambda df: df.groupBy("id").count()
        ),
        "it may only look at each row",
    ),
    "a function that drops the key": (
        lambda office: office.employees.join(office.departments, on="id").transform(lambda df: df.drop("id")),
        "left out 'id', the key of the view",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_view_that_cannot_be_is_refused(app: App, spark: SparkSession, mistake: str) -> None:
    build, message = MISTAKES[mistake]
    with pytest.raises(Misuse, match=message):
        Office(app).log(build).build(spark, "127.0.0.1:1")


def joined_by_dept(office: Office) -> TableView:
    return office.employees.join(office.departments, on={"dept": "id"})


def test_a_view_with_another_key_than_its_rows_is_refused(app: App, spark: SparkSession) -> None:
    job = Office(app).job(joined_by_dept, app.view("staff", key="dept"))
    with pytest.raises(Misuse, match="its rows replace one another by id, and the view 'staff' has the key"):
        job.build(spark, "127.0.0.1:1")


def test_a_view_that_was_joined_otherwise_before_is_refused(
    app: App, spark: SparkSession, tmp_path: Path
) -> None:
    office = Office(app)
    before = office.employees.join(office.departments, on={"dept": "id"}, how="inner")
    shape = ViewLayout.of(before.first, before.links).shape
    manifest = OperatorManifest(partitions=2, outline=shape.outline)
    write_operator(str(tmp_path / "view-1"), manifest, batch=0)
    plan, rows = office.log(joined_by_dept).build(spark, "127.0.0.1:1")
    planner = Planner(plan, rows.frame, state=str(tmp_path))
    planner.planned_rows()
    with pytest.raises(IncompatibleChange, match="delete the view's topic, and start over"):
        planner.hooks.check_all()


def test_the_columns_of_a_view_are_those_of_its_tables_without_the_keys_of_the_others(
    app: App, spark: SparkSession
) -> None:
    people = app.table("people", "id long, name string, boss long", key="id")
    view = people.join(people, on={"boss": "id"})
    columns = ViewLayout.of(view.first, view.links).columns
    assert (
        columns.simpleString()
        == "struct<id:bigint,name:string,boss:bigint,people_name:string,people_boss:bigint>"
    )


def test_what_names_no_row_of_a_table_is_a_dead_letter_of_the_view(app: App) -> None:
    office = Office(app)
    job = office.log(lambda office: office.employees.join(office.departments, on={"dept": "id"}))
    batches = inputs([employee(1, "Alice", 1), department(1, "People")], [employee(2, "Bob", 1)])
    batches[0]["employees"].append("nonsense")
    batches[1]["departments"].append({"title": "no number"})
    rows = run(job, batches)
    assert sorted(row["name"] for row in rows) == ["Alice", "Bob"]
    assert [(letter["topic"], letter["value"]) for letter in rows.dead] == [
        ("employees", b"nonsense"),
        ("departments", b'{"title": "no number"}'),
    ]


@pytest.mark.parametrize("changelog", [False, True])
def test_a_function_behind_a_join_of_tables_is_refused_with_dead_letters_before_anything_runs(
    app: App, spark: SparkSession, changelog: bool
) -> None:
    office = Office(app)

    @app.job(into=app.topic("staff", key="id"), on_error="dead_letter")
    def staff() -> Any:
        view = office.employees.join(office.departments, on={"dept": "id"})
        view = view.transform(lambda df: df.withColumn("part", F.expr("split(title, '/')[2]")))
        return view.changelog if changelog else view

    with pytest.raises(Misuse, match=r"(?s)'staff' has on_error=.*cannot become a dead letter.*another job"):
        staff.build(spark, "127.0.0.1:1")
