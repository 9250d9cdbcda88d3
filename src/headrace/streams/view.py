"""A view: a topic in which the newest row of each key is the one that counts.

A view's rows replace one another: its topic is compacted, and its records have the view's key. What a view
looks like (its columns, its key, the job that fills it) is written to the topic `headrace.views` when the job
starts, so that change feeds and queries need no schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.client.cluster import Cluster
from headrace.durations import milliseconds_of
from headrace.engine.logical import current_plan
from headrace.errors import Misuse
from headrace.feeds.catalog import ViewDescription, find_view, register_view
from headrace.sinks.sink import DELETED
from headrace.streams.topic import JSON_OPTIONS, Topic, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.columns.documents import RecordForm
    from headrace.durations import Duration
    from headrace.engine.logical import LogicalPlan
    from headrace.streams.job import Job
    from headrace.streams.rows import OutputMode

DAY_MS: Final = 86_400_000
SEGMENT_BYTES: Final = 64 << 20
"""Compaction looks at closed segments only: with Kafka's gigabyte, most views would never be compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Topic):
    """A compacted topic that a job writes: each row takes the place of the one before it with the same key.

    A row whose column `_deleted` is true deletes its key. A change stays in the log for at least the time
    that the view was made with (`change_retention`), and so long a change feed can be resumed.
    """

    @classmethod
    def of(
        cls,
        name: str,
        *,
        key: Sequence[str],
        partitions: int | None = None,
        change_retention: Duration = "1 day",
        config: Mapping[str, str] | None = None,
    ) -> Self:
        """The view of that name; its settings count if the topic has to be made."""
        if not key:
            raise Misuse(f'the view {name!r} needs a key: name the columns, for example key="id".')
        keep_ms = milliseconds_of(change_retention, f"change_retention of the view {name!r}")
        settings = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(keep_ms),
            "delete.retention.ms": str(max(keep_ms, DAY_MS)),
            "segment.bytes": str(SEGMENT_BYTES),
        }
        return cls(name=name, key=tuple(key), partitions=partitions, config={**settings, **(config or {})})

    def records(self, rows: DataFrame) -> DataFrame:
        """The rows as records: `key`, and `value`, which is null where a row deletes its key."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        shown = self.shown(rows)
        self._check_columns(shown)
        value = F.to_json(F.struct(*(F.col(quoted(name)) for name in shown.columns)), JSON_OPTIONS)
        if shown is not rows:
            value = F.when(F.coalesce(F.col(DELETED), F.lit(False)), F.lit(None)).otherwise(value)
        return rows.select(self._whole_key(rows).alias("key"), value.alias("value"))

    def _form(self, rows: DataFrame) -> RecordForm:
        from headrace.columns.documents import RecordForm

        deleted = None if self.shown(rows) is rows else DELETED
        return RecordForm(columns=tuple(rows.columns), key=self.key, is_key_whole=True, deleted=deleted)

    def mode_for(self, rows: DataFrame) -> OutputMode:
        """Update where a single aggregation makes the rows and never closes a group; otherwise append.

        Windows give a result when they are closed, or `on_window_update`.
        """
        return mode_of_replacing_rows(rows)

    def remember(self, cluster: Cluster, rows: DataFrame, job: str) -> None:
        """Write down what the view looks like, for its readers."""
        schema = self.shown(rows).schema
        register_view(
            cluster,
            ViewDescription(
                name=self.name, topic=self.name, key=self.key, schema=schema.jsonValue(), job=job
            ),
        )

    def shown(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of the view."""
        if DELETED not in rows.columns:
            return rows
        kind = rows.schema[DELETED].dataType.typeName()
        if kind != "boolean":
            raise Misuse(
                f"view {self.name!r}: the column {DELETED} says which rows are deleted: it has to be of type "
                f"boolean, not {kind}."
            )
        return rows.drop(DELETED)

    def _whole_key(self, rows: DataFrame) -> Column:
        """The key, which is never null: a compacted topic refuses such records."""
        from pyspark.sql import functions as F  # noqa: N812

        document = F.to_json(F.struct(*(F.col(quoted(name)) for name in self.key)), JSON_OPTIONS)
        if len(self.key) > 1:
            return document
        key = self._key(rows)
        binary = rows.schema[self.key[0]].dataType.typeName() == "binary"
        return F.coalesce(key, document.cast("binary") if binary else document)


def mode_of_replacing_rows(rows: DataFrame) -> OutputMode:
    """How rows are written where the newest of each key counts, if they do not say it themselves."""
    from headrace.engine.logical import active_plan
    from headrace.spark.internals import groups_by_event_time, stateful_operators

    plan = active_plan()
    operators = stateful_operators(rows) if plan is None else plan.spark_operators(rows)
    kinds = [operator.kind for operator in operators]
    return "update" if kinds == ["aggregation"] and not groups_by_event_time(rows) else "append"


def view_schema(view: View, writer: Job | None) -> str:
    """The columns of a view as the JSON of a StructType.

    They are those of the rows of `writer`, the job of the same application that writes the view; or, where
    another application writes it, those that are in the list of views, once it has been started.
    """
    plan = current_plan(f"the view {view.name!r}")
    if writer is None:
        with Cluster.of(plan.bootstrap) as cluster:
            return json.dumps(find_view(cluster, view.name).schema)
    if plan.job == writer.full_name:
        raise Misuse(f"job {writer.name!r} reads the view {view.name!r} that it writes: use another job.")
    return plan.once(f"schema of {view.name}", lambda: _written(view, writer, plan))


def _written(view: View, writer: Job, plan: LogicalPlan) -> str:
    from pyspark.sql.types import StructField, StructType

    _, rows = writer.build(plan.spark, plan.bootstrap)
    # The marks of event time belong to the rows of the writer.
    columns = view.shown(rows.frame).schema
    return StructType([StructField(column.name, column.dataType) for column in columns]).json()
