"""A view over tables: a row for every key of the first, with what belongs to it in the others, kept right.

What a job gets is the changes: the rows that are new or different, and, with `_deleted`, those that are gone.
They are found by the driver, from copies of the tables beside the checkpoint (`headrace.tables.view_join`),
and are rows of a streaming DataFrame like any others.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlparse

from headrace.errors import Misuse
from headrace.streams.columns import listed
from headrace.streams.description import IncompatibleChange
from headrace.streams.plan import stateful_operators
from headrace.streams.query_builder import current_builder
from headrace.streams.rows import Operators, Rows
from headrace.streams.table import Table
from headrace.streams.view_layout import TableLink, ViewLayout, changes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from headrace.spark.arrow_step import ArrowStep
    from headrace.spark.view_stage import ViewFolder
    from headrace.streams.query_builder import QueryBuilder
    from headrace.streams.rows import On
    from headrace.streams.view_layout import How
    from headrace.tables.view_join import ViewShape

WEIGHT: Final = "_weight"


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
        return current_builder("a view over tables").stateful(self._change_rows, list)

    def _change_rows(self) -> Rows:
        layout, stream, folder = self._followed(with_images=bool(self.functions))
        step = self._changes(stream, folder, layout)
        return Rows(frame=step.rows, step=step, key=self.first.key)

    @property
    def changelog(self) -> Rows:
        """The changes as a changelog with weights: an inserted row has `_weight` 1, a retracted one -1.

        A row that is updated is retracted as it was and inserted as it is. So the sum of `_weight` is the
        number of rows that there are, and the sum of `_weight * amount` is the sum of their amounts.
        """
        return current_builder("a view over tables").stateful(self._changelog_rows, list)

    def _changelog_rows(self) -> Rows:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        layout, stream, folder = self._followed(with_images=True)
        went, came = (
            self._image(stream, folder, layout, is_after=is_after).withColumn(WEIGHT, F.lit(weight))
            for is_after, weight in ((False, -1), (True, 1))
        )
        return Rows(frame=went.unionAll(came))

    def _followed(self, *, with_images: bool) -> tuple[ViewLayout, DataFrame, ViewFolder]:
        builder = current_builder("a view over tables")
        layout = ViewLayout.of(self.first, self.links)
        folder = _folder(builder)
        _check_outline(builder, folder, layout.shape)
        tables = [self.first, *(link.table for link in self.links)]
        stream = _followed(builder, folder, layout.shape, tables, with_images=with_images)
        return layout, stream, folder

    def _changes(self, stream: DataFrame, folder: ViewFolder, layout: ViewLayout) -> ArrowStep:
        from headrace.spark.view_changes import FindChanges
        from headrace.spark.view_stage import ViewStage

        if not self.functions:
            return ViewStage(folder=str(folder.path)).step(stream, changes_of(layout.columns))
        before, after = (self._image(stream, folder, layout, is_after=is_after) for is_after in (False, True))
        return FindChanges(key=self.first.key).step(before, after, changes_of(before.schema))

    def _image(
        self, stream: DataFrame, folder: ViewFolder, layout: ViewLayout, *, is_after: bool
    ) -> DataFrame:
        """The rows that a batch changes, as they were or as they are."""
        from headrace.spark.view_stage import ViewStage

        step = ViewStage(folder=str(folder.path), flagged=is_after).step(stream, layout.columns)
        return self._made(step.rows)

    def _made(self, frame: DataFrame) -> DataFrame:
        if self.functions:
            current_builder("a view over tables").plan.transforms_views = True
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


def _followed(
    builder: QueryBuilder, folder: ViewFolder, shape: ViewShape, tables: Sequence[Table], *, with_images: bool
) -> DataFrame:
    """A stream in whose batches the tables are kept up to date."""
    from headrace.spark.view_stage import ViewFeed, watched

    context = builder.spark.sparkContext
    feed = ViewFeed(context, folder, shape, with_images=with_images)
    builder.plan.before(feed.update)
    builder.plan.count_tables(feed.records)
    for table in tables:
        builder.plan.tables[table.topic] = partial(feed.unread, table.topic)
    topics = list(dict.fromkeys(table.topic for table in shape.tables))
    for topic in topics:
        builder.plan.follow(topic)
    return watched(builder.spark, builder.bootstrap, topics[0], topics[1:])


def _folder(builder: QueryBuilder) -> ViewFolder:
    from headrace.spark.view_stage import ViewFolder

    place = urlparse(builder.state)
    if place.scheme not in ("", "file"):
        raise Misuse(
            f"the job joins tables, and its checkpoint is at {builder.state!r}: the copies of tables are "
            "files. Use a folder that every machine reaches by the same path."
        )
    numbers = builder.plan.once("table views", itertools.count)
    return ViewFolder(path=Path(place.path) / f"view-{next(numbers)}")


def _check_outline(builder: QueryBuilder, folder: ViewFolder, shape: ViewShape) -> None:
    known = folder.outline()
    if known is not None and known != json.loads(json.dumps(shape.outline)):
        job = builder.job.rpartition(".")[2]
        raise IncompatibleChange(
            f"job {builder.job!r} has made its view of other tables, or joined them otherwise: rows that it "
            "wrote would stay wrong. Undo the change; or give the changed job a new name and another view; "
            f"or delete the view's topic, and begin anew with `headrace job reset {job} --to start`."
        )
