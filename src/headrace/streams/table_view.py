"""A view over tables: a row for every key of the first, with what belongs to it in the others, kept right.

```text
 topics of tables ──▶ rows that change ──▶ joins ──▶ changes of the view
                                            as they were, as they are ──▶ transform() ──▶ find changes
```

What a job gets is the changes: the rows that are new or different, and, with `_deleted`, those that are gone.
Tasks find them, with the tables and the rows that are joined to them in their state
(`headrace.tables.view_join`). They are rows of a streaming DataFrame like any others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn

from headrace.engine.columns import key_pairs, listed, names_beside
from headrace.engine.description import IncompatibleChange
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.sinks.sink import DELETED
from headrace.spark.internals import stateful_operators
from headrace.streams.rows import Operators, Rows
from headrace.streams.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.engine.columns import On
    from headrace.engine.logical import LogicalPlan
    from headrace.engine.planner import Planner
    from headrace.spark.transactional_batch import Batch
    from headrace.spark.view_stage import ViewStage
    from headrace.tables.view_join import JoinedRows, ViewShape, WholeRows

WEIGHT: Final = "_weight"
How = Literal["left", "inner"]

Place = tuple[int, str]
"""Where a column of a view comes from: the number of the table, and its name there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLink:
    """One table more, and how it is joined."""

    table: Table
    on: On
    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView(Operators):
    """Tables joined with one another: a job writes the changes, into a view that has the first one's key."""

    first: Table
    links: tuple[TableLink, ...] = ()
    functions: tuple[Callable[[DataFrame], DataFrame], ...] = ()

    # What follows must see rows as they were and as they are: the steps give no `Rows`, but views again.
    def join(self, other: Table, on: On, *, how: How = "left") -> TableView:  # type: ignore[override]
        """The view with one more table: beside each row the one whose whole key is in the columns `on`.

        `how="left"` gives nulls where there is none, `"inner"` leaves the row out.
        """
        if not isinstance(other, Table):
            raise Misuse(
                "a table is joined with tables. To give the rows of a stream what a table holds, begin with "
                "the stream: orders.join(users, …)."
            )
        if how not in ("left", "inner"):
            raise Misuse(f"how={how!r}: a table joins a table as left or inner.")
        if self.functions:
            raise Misuse("a table cannot be joined after transform(): join all tables first.")
        return replace(self, links=(*self.links, TableLink(table=other, on=on, how=how)))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> TableView:  # type: ignore[override]
        """The view with what a function makes of each of its rows: it may leave some out, or change columns.

        It is called with a DataFrame of rows as they were and with one of rows as they are. The columns of
        the key have to stay.
        """
        return replace(self, functions=(*self.functions, function))

    @property
    def rows(self) -> Rows:
        """The changes in each batch: the columns of the view, and `_deleted`."""
        plan, view = self._view()
        if not self.functions:
            node: LogicalNode = plan.add(
                ViewRows, changes_of(view.layout.columns), name=view.name, view=view, is_after=None
            )
        else:
            before, after = (self._image(plan, view, is_after=is_after) for is_after in (False, True))
            node = plan.add(
                ChangedRows, changes_of(before.schema), inputs=(before, after), key=self.first.key, view=view
            )
        return Rows(frame=node.rows, key=self.first.key)

    @property
    def changelog(self) -> Rows:
        """The changes as a changelog with weights: an inserted row has `_weight` 1, a retracted one -1.

        A row that is updated is retracted as it was and inserted as it is. So the sum of `_weight` is the
        number of rows that there are, and the sum of `_weight * amount` is the sum of their amounts.
        """
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        plan, view = self._view()
        removed, added = (
            self._image(plan, view, is_after=is_after).withColumn(WEIGHT, F.lit(weight))
            for is_after, weight in ((False, -1), (True, 1))
        )
        both = removed.unionAll(added)
        node = plan.add(Changelog, both.schema, inputs=(both,), view=view, transforms=bool(self.functions))
        return Rows(frame=node.rows)

    def _view(self) -> tuple[LogicalPlan, ViewSpec]:
        plan = current_plan("a view over tables")
        tables = (self.first, *(link.table for link in self.links))
        view = ViewSpec(
            name=plan.next_name(ViewRows.kind),
            tables=tables,
            layout=ViewLayout.of(self.first, self.links),
        )
        for topic in view.topics:
            plan.hooks.follow(topic)
        return plan, view

    def _image(self, plan: LogicalPlan, view: ViewSpec, *, is_after: bool) -> DataFrame:
        """The rows that a batch changes, as they were or as they are, after the functions of the user."""
        name = f"{view.name}.{'after' if is_after else 'before'}"
        frame = plan.add(ViewRows, view.layout.columns, name=name, view=view, is_after=is_after).rows
        for function in self.functions:
            frame = function(frame)
        missing = [name for name in self.first.key if name not in frame.columns]
        if missing:
            raise Misuse(
                f"the function given to transform() left out {listed(missing)}, the key of the view: keep it "
                "among the columns."
            )
        if stateful_operators(frame):
            raise Misuse(
                "the function given to transform() puts rows together (an aggregation, a join, distinct): "
                "behind a join of tables it may only look at each row. Write the view, and read its topic "
                "with another job."
            )
        return frame

    def window(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: rows of a view have no time."""
        raise _not_for_views("window")

    def deduplicate(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: rows of a view replace one another."""
        raise _not_for_views("deduplicate")

    def map_arrow(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: `transform` sees to it that rows that are gone are gone."""
        raise _not_for_views("map_arrow")


def _not_for_views(step: str) -> Misuse:
    return Misuse(
        f"{step}() cannot follow a join of tables: what comes out of it are changes to a view, of which each "
        "row may be replaced or deleted later. Write the view (into=app.view(…)), and read its topic with "
        "another job."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSpec:
    """A view in the plan of a job."""

    name: str
    tables: tuple[Table, ...]
    layout: ViewLayout

    @property
    def topics(self) -> list[str]:
        """The topics of its tables."""
        return list(dict.fromkeys(table.topic for table in self.layout.shape.tables))

    def stage(self, planner: Planner) -> ViewStage:
        """The steps of the view in a query."""
        return planner.once(f"view {self.name}", lambda: self._stage(planner))

    def change_rows(self, planner: Planner) -> DataFrame:
        """The rows of the view that change, as they were and as they are."""
        return planner.once(f"rows of {self.name}", lambda: self.stage(planner).rows(self.source(planner)))

    @staticmethod
    def source(planner: Planner) -> DataFrame:
        """What starts the tasks of all views of a job: they advance together."""
        from headrace.spark.view_stage import watched

        views = [node.view for node in planner.nodes if isinstance(node, ViewRows)]
        topics = dict.fromkeys(topic for view in views for topic in view.topics)
        return planner.once("views", lambda: watched(planner.spark, planner.bootstrap, [*topics]))

    def _stage(self, planner: Planner) -> ViewStage:
        from headrace.spark.options import ClusterConnection
        from headrace.spark.view_stage import UnreadRecords, ViewStage
        from headrace.tables.preparation import prepare_tables

        hooks, spark = planner.hooks, planner.spark
        link = ClusterConnection(bootstrap=planner.bootstrap)
        stage = ViewStage(folder=f"{planner.state}/{self.name}", shape=self.layout.shape, link=link)
        records = 0

        def prepare(batch: Batch) -> None:
            nonlocal records
            prepare_tables()
            records += stage.prepare(batch, spark)

        def unread(topic: str, _: Batch) -> pa.Table:
            return UnreadRecords(stage.folder).read(topic)

        hooks.state[self.name] = f"a view over {', '.join(self.topics)}"
        hooks.check(lambda: _check_outline(planner.plan.job, stage))
        hooks.before(prepare)
        hooks.count_tables(lambda: records)
        for topic in self.topics:
            hooks.tables[topic] = partial(unread, topic)
        return stage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewRows(LogicalNode):
    """The rows of a view that a batch changes."""

    kind: ClassVar[str] = "view"
    keeps_state: ClassVar[bool] = True
    view: ViewSpec
    is_after: bool | None
    """Whether rows are wanted as they are, or as they were; None for the changes."""

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows, which the tasks of the view find."""
        stage, schema = self.view.stage(planner), self.rows.schema
        if self.is_after is None:
            return PlannedRows.of(stage.changes(self.view.source(planner), schema))
        rows = self.view.change_rows(planner)
        return PlannedRows.of(stage.image(rows, schema, is_after=self.is_after))

    def details(self) -> Mapping[str, str]:
        """The tables."""
        return {"state": f"rows of {', '.join(self.view.topics)}, and rows that are joined, by foreign key"}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the tables."""
        return tuple(self.view.topics)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangedRows(LogicalNode):
    """The changes between two images of the rows of a view."""

    kind: ClassVar[str] = "changes"
    keeps_state: ClassVar[bool] = True
    shuffles: ClassVar[bool] = True
    key: tuple[str, ...]
    view: ViewSpec

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows that are new, different or gone."""
        from headrace.spark.view_stage import FindChanges

        before, after = map(planner.frame, self.inputs)
        return PlannedRows.of(FindChanges(key=self.key).step(before, after, self.rows.schema))

    def evaluated(self) -> Sequence[DataFrame]:
        """Nothing: no single record is the reason of a row."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changelog(LogicalNode):
    """The changes of a view with weights."""

    kind: ClassVar[str] = "changelog"
    keeps_state: ClassVar[bool] = True
    view: ViewSpec
    transforms: bool

    def plan(self, planner: Planner) -> PlannedRows:
        """Rows as they were and as they are."""
        return PlannedRows(frame=planner.frame(self.inputs[0]))

    def evaluated(self) -> Sequence[DataFrame]:
        """Nothing: no single record is the reason of a row."""
        return ()


def transforms_views(plan: LogicalPlan) -> bool:
    """Whether functions of the user are part of a join of tables."""
    return any(
        isinstance(node, ChangedRows) or (isinstance(node, Changelog) and node.transforms)
        for node in plan.nodes
    )


def _check_outline(job: str, stage: ViewStage) -> None:
    from headrace.state.operators import read_operator

    known = read_operator(stage.folder)
    if known is not None and known.outline != stage.shape.outline:
        raise IncompatibleChange(
            f"job {job!r} has made its view of other tables, or joined them otherwise: rows that it wrote "
            "would stay wrong. Undo the change; or give the changed job a new name and another view; or "
            "delete the view's topic, and start over with "
            f"`headrace job reset {job.rpartition('.')[2]} --to start`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLayout:
    """A view, for the copies of its tables and for Spark."""

    shape: ViewShape
    columns: StructType

    @classmethod
    def of(cls, first: Table, links: Sequence[TableLink]) -> ViewLayout:
        """The layout of tables that are joined one after the other."""
        from pyspark.sql.types import StructField, StructType

        from headrace.tables.view_join import ViewShape

        tables = [first, *(link.table for link in links)]
        _check_definitions(tables)
        fields = list(_columns(first))
        places: dict[str, Place] = {field.name: (0, field.name) for field in fields}
        joined = []
        for number, link in enumerate(links, 1):
            joined.append(_joined(link, places, tables))
            beside = [field for field in _columns(link.table) if field.name not in link.table.key]
            names = names_beside([field.name for field in beside], places, link.table.topic)
            fields += [StructField(names[field.name], field.dataType) for field in beside]
            places |= {names[field.name]: (number, field.name) for field in beside}
        shape = ViewShape(first=_definition(first), joined=tuple(joined))
        return cls(shape=shape, columns=StructType(fields))


def changes_of(columns: StructType) -> StructType:
    """The columns of a change to a view of these columns."""
    from pyspark.sql.types import BooleanType, StructField, StructType

    if DELETED in columns.names:
        raise Misuse(
            f"a view over tables marks rows that are gone by a column {DELETED}, and one of its tables has a "
            "column of that name: rename it there."
        )
    # Whether a column may be null is not for changes to say.
    fields = [StructField(field.name, field.dataType) for field in columns]
    return StructType([*fields, StructField(DELETED, BooleanType())])


def _check_definitions(tables: Sequence[Table]) -> None:
    known: dict[str, Table] = {}
    for table in tables:
        if known.setdefault(table.topic, table) != table:
            raise Misuse(
                f"a view joins the table of {table.topic!r} by two definitions that differ: declare one "
                "`app.table` with all the fields, and use it twice."
            )


def _joined(link: TableLink, places: dict[str, Place], tables: Sequence[Table]) -> JoinedRows:
    from headrace.tables.view_join import JoinedRows

    table = link.table
    pairs = {other: one for one, other in key_pairs(link.on, list(places), _columns(table).names).items()}
    if sorted(pairs) != sorted(table.key):
        raise Misuse(
            f"the join compares {listed(pairs)} of the table of {table.topic!r}, but its rows are found by "
            f"their whole key, which is {listed(table.key)}: name these in on=."
        )
    found = [places[pairs[key]] for key in table.key]
    if len({number for number, _ in found}) > 1:
        raise Misuse(
            f"the key of the table of {table.topic!r} is compared with columns of several tables: "
            f"{listed(pairs.values())}. A foreign key has to be in one table as a whole."
        )
    parent = found[0][0]
    foreign_key = tuple(name for _, name in found)
    _check_types(tables[parent], foreign_key, table)
    return JoinedRows(
        definition=_definition(table), parent=parent, foreign_key=foreign_key, is_inner=link.how == "inner"
    )


def _check_types(parent: Table, foreign_key: Sequence[str], table: Table) -> None:
    for name, key in zip(foreign_key, table.key, strict=True):
        given, wanted = _columns(parent)[name].dataType, _columns(table)[key].dataType
        if given != wanted:
            raise Misuse(
                f"the join compares {name!r} of the table of {parent.topic!r}, which is "
                f"{given.simpleString()}, with {key!r} of {table.topic!r}, which is {wanted.simpleString()}: "
                "declare both with one type."
            )


def _columns(table: Table) -> StructType:
    from pyspark.errors import PySparkException

    try:
        return table.struct()
    except PySparkException as error:
        from headrace.streams.explanation import root_cause

        reason = root_cause(error).message
        raise Misuse(f"the table of {table.topic!r}: its schema is not one: {reason}") from None


def _definition(table: Table) -> WholeRows:
    from pyspark.sql.pandas.types import to_arrow_type

    from headrace.tables.view_join import WholeRows

    row_type = to_arrow_type(_columns(table), timezone="UTC")
    return WholeRows(
        topic=table.topic, row_type=row_type, key=table.key, keep_us=0, time_unit=table.time_unit
    )
