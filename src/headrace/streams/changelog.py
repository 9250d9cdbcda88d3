"""Results that change on their way to an output: upserts and deletes by its key, or changes with weights.

```text
 window, emit="on_window_update"     filter(revenue > 100)      view, key=[window_start, product]
  +1 (10:00, tea, 120)          ──▶   +1 (10:00, tea, 120)  ──▶  upsert (10:00, tea, 120)
  -1 (10:00, tea, 120)          ──▶   -1 (10:00, tea, 120)  ──▶  delete (10:00, tea)
  +1 (10:00, tea,  90)          ──▶   –
```

Where the rows of a window reach a keyed output as they are, each result replaces the one before, and nothing
has to be retracted. Behind a filter, a ranking or a join a result may be gone: then each batch is
consolidated by the key of the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.engine.columns import listed
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.sinks.sink import DELETED
from headrace.spark.internals import kept_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.engine.logical import LogicalPlan
    from headrace.engine.planner import Planner
    from headrace.streams.output_targets import OutputTargets
    from headrace.streams.rows import Rows

SHOWN_WEIGHT: Final = "_weight"
"""The name under which users see the weight of a change."""


def changelog_rows(rows: Rows) -> Rows:
    """The changes of results as rows that do not change: `_weight` is 1 where one is inserted, or -1."""
    plan = current_plan("changelog")
    if not plan.is_changelog(rows.frame):
        raise Misuse(
            'changelog is for results that change, such as those of agg(…, emit="on_window_update"): these '
            "rows are inserted once, and never retracted."
        )
    if SHOWN_WEIGHT in rows.frame.columns:
        raise Misuse(f"changelog adds a column {SHOWN_WEIGHT!r}, and the rows have one: rename it first.")
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([*rows.frame.schema.fields, StructField(SHOWN_WEIGHT, LongType())])
    node = plan.add(Changes, schema, inputs=(rows.frame,), reads_weights=True, behind_ms=rows.behind_ms)
    return replace(rows, frame=node.rows, mode=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes(LogicalNode):
    """A changelog whose weights are a column as any other."""

    kind: ClassVar[str] = "changelog"
    takes_changelogs: ClassVar[bool] = True

    def plan(self, planner: Planner) -> PlannedRows:
        """All rows, with their weights."""
        return PlannedRows(frame=planner.weighted_frame(self.inputs[0]).toDF(*self.rows.columns))


def rows_for_outputs(plan: LogicalPlan, rows: Rows, into: OutputTargets, job: str) -> Rows:
    """Rows of a job as its outputs take them: a changelog becomes upserts and deletes by their key."""
    if not plan.is_changelog(rows.frame):
        return rows
    key = _key_of(into, job)
    (node, *others) = plan.inputs_of_frame(rows.frame)
    is_whole = bool(node.key) and not others and kept_columns(rows.frame, node.key)
    if is_whole:
        return rows
    if DELETED in rows.frame.columns:
        raise Misuse(
            f"job {job!r}: its results change, so the column {DELETED!r} says which of them are gone, and "
            "the rows have a column of that name: rename it."
        )
    _check_key(rows.frame, key, into, job)
    from pyspark.sql.types import BooleanType, StructField, StructType

    schema = StructType([*rows.frame.schema.fields, StructField(DELETED, BooleanType())])
    made = plan.add(
        Upserts, schema, inputs=(rows.frame,), by=key, reads_weights=True, behind_ms=rows.behind_ms
    )
    return replace(rows, frame=made.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Upserts(LogicalNode):
    """The changes of a batch by key: the row that is there now, or, with `_deleted`, the one that was."""

    kind: ClassVar[str] = "upserts"
    keeps_state: ClassVar[bool] = True  # it needs all changes of a key: a part of a batch says nothing
    shuffles: ClassVar[bool] = True
    takes_changelogs: ClassVar[bool] = True
    by: tuple[str, ...]

    def plan(self, planner: Planner) -> PlannedRows:
        """Upserts and deletes."""
        import pyarrow as pa

        from headrace.columns.changelog import latest_by_key
        from headrace.spark.arrow_step import ArrowStep, by_position, column_name
        from headrace.spark.keyed_stage import arrow_schema

        frame = planner.weighted_frame(self.inputs[0])
        keys = [column_name(frame.columns.index(name)) for name in self.by]
        names, by, schema = frame.columns, self.by, arrow_schema(self.rows.schema)

        def upserts(batches: Any) -> Any:
            gathered = [batch.rename_columns(names) for batch in batches if batch.num_rows]
            if gathered:
                rows = latest_by_key(pa.Table.from_batches(gathered), by, DELETED)
                yield from rows.cast(schema).combine_chunks().to_batches()

        plain = by_position(frame).repartition(*keys)
        return PlannedRows.of(ArrowStep.of(plain, upserts, self.rows.schema))

    def evaluated(self) -> Sequence[DataFrame]:
        """Nothing: no single record is the reason of a row."""
        return ()

    def details(self) -> Mapping[str, str]:
        """The key."""
        return {"gives": f"upserts and deletes by {', '.join(self.by)}"}


def _key_of(into: OutputTargets, job: str) -> tuple[str, ...]:
    """The columns by which rows replace one another in all outputs of a job."""
    keys = {topic.name: topic.key for topic in into.topics}
    keys |= {sink.name: _sink_key(sink) for sink in into.sinks}
    for name, key in keys.items():
        if not key:
            raise Misuse(
                f"job {job!r}: its results change, and {name!r} only appends rows: it would hold each result "
                'several times. Give it a key (app.view(…, key=…), app.topic(…, key=…), mode="upsert"); or '
                'take emit="on_window_close", without allowed_lateness=; or write the changes themselves, '
                "with `_weight` 1 for an inserted and -1 for a retracted row: rows.changelog."
            )
    return next(iter(keys.values()))


def _sink_key(sink: Any) -> tuple[str, ...]:
    if getattr(sink, "mode", "upsert") == "append":
        return ()
    parts = [getattr(sink, name, None) for name in ("key", "member")]
    columns = [getattr(part, "columns", part) for part in parts if part is not None]
    return tuple(dict.fromkeys(name for names in columns for name in names))


def _check_key(frame: DataFrame, key: tuple[str, ...], into: OutputTargets, job: str) -> None:
    """Refuse outputs that cannot delete a result that is gone."""
    keys = [topic.key for topic in into.topics] + [_sink_key(sink) for sink in into.sinks]
    if any(set(each) != set(key) for each in keys):
        raise Misuse(
            f"job {job!r}: its results change and can be gone again, so they are deleted by key, and its "
            "outputs have different keys: write them with several jobs."
        )
    for sink in into.sinks:
        if getattr(sink, "mode", None) == "upsert":
            raise Misuse(
                f"job {job!r}: its results change and can be gone again, and {sink.name!r} with "
                'mode="upsert" deletes no row: take mode="mirror".'
            )
    missing = [name for name in key if name not in frame.columns]
    if missing:
        raise Misuse(
            f"job {job!r}: its output has the key {listed(key)}, but the rows have no {listed(missing)}: "
            f"their columns are {listed(frame.columns)}."
        )
