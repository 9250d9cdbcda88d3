"""The columns of a view that a job reads back: they are declared once, by the job that writes the view."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.feeds.catalog import find_view
from headrace.streams.query_builder import QueryBuilder, RowsWanted, current_builder

if TYPE_CHECKING:
    from headrace.streams.job import Job
    from headrace.streams.rows import Rows
    from headrace.streams.view import View


def view_schema(view: View, writer: Job | None) -> str:
    """The columns of a view as the JSON of a StructType.

    They are those of the rows of `writer`, the job of the same application that writes the view; or, where
    another application writes it, those that are in the list of views, once it has been started.
    """
    builder = current_builder(f"the view {view.name!r}")
    if writer is None:
        with Cluster.of(builder.bootstrap) as cluster:
            return json.dumps(find_view(cluster, view.name).schema)
    if builder.job == writer.full_name:
        raise Misuse(f"job {writer.name!r} reads the view {view.name!r} that it writes: use another job.")
    return builder.plan.once(f"schema of {view.name}", lambda: _written(view, writer, builder))


def _written(view: View, writer: Job, builder: QueryBuilder) -> str:
    from pyspark.sql.types import StructField, StructType

    columns = view.shown(_rows(writer, builder).frame).schema
    # The marks of event time belong to the rows of the writer.
    return StructType([StructField(column.name, column.dataType) for column in columns]).json()


def _rows(writer: Job, builder: QueryBuilder) -> Rows:
    by_rows = builder.by_rows
    while True:
        state = f"{builder.state}/schema-of-{writer.name}"
        made = QueryBuilder(
            builder.spark, builder.bootstrap, job=writer.full_name, state=state, by_rows=by_rows
        )
        try:
            return writer.build(made)
        except RowsWanted as wanted:
            by_rows |= {wanted.stream}
