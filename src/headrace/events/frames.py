"""Events as frames of Spark: of all kinds with their fields as JSON, or of one kind with typed columns.

| column | type | |
|---|---|---|
| `id`, `version` | string, long | the aggregate, and its version after the event |
| `type`, `type_version` | string, int | the class of the event, as it was written |
| `time` | timestamp | when it was decided |
| `event_id`, `command_id`, `causation`, `correlation`, `actor` | string | |
| `partition`, `offset` | int, long | where it stands |
| `data` | string | the fields as JSON; of one kind of event they are columns instead |

Only columns that a query uses cost something. Fields of one kind are parsed where the log is read, and events
of older versions are brought up to the current one first, by the functions of their class.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.events.aggregate import aggregate_form
from headrace.events.event import event_form
from headrace.events.topics import events_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.events.aggregate import Aggregate
    from headrace.events.event import Event, EventForm

# Where our own handlers put each header; it is looked for elsewhere only when it is not there.
_HEADERS: Final = {
    "type": ("ce_type", 0, "string"),
    "type_version": ("ce_dataversion", 1, "int"),
    "version": ("ce_sequence", 2, "bigint"),
    "event_id": ("ce_id", 3, "string"),
    "command_id": ("ce_commandid", 7, "string"),
    "causation": ("ce_causationid", 8, "string"),
    "correlation": ("ce_correlationid", 9, "string"),
    "actor": ("ce_actor", 12, "string"),
}
ABOUT: Final = ("id", "version", "type", "type_version", "time", *list(_HEADERS)[3:], "partition", "offset")


def event_frame(
    spark: SparkSession,
    broker: str,
    store: str,
    kind: type[Aggregate],
    event: type[Event] | None,
    *,
    streaming: bool,
) -> DataFrame:
    """The events of a class of aggregates; of one kind with its fields as columns."""
    topic = events_topic(store, aggregate_form(kind).name)
    if event is None:
        return _read(spark, broker, topic, {}, streaming=streaming).select(
            *_about(), _as_text("value").alias("data")
        )
    form = event_form(event)
    if form not in aggregate_form(kind).events.values():
        raise Misuse(f"{kind.__name__} has no event {form.name}: it has no applier that takes one.")
    _check_names(form)
    if form.version == 1:
        return _parsed_by_source(spark, broker, topic, form, streaming=streaming)
    return _parsed_by_spark(spark, broker, topic, form, streaming=streaming)


def columns_of(form: EventForm) -> str:
    """The fields of an event as Spark writes a schema.

    >>> from headrace.events import Event
    >>> class Added(Event):
    ...     product: str
    ...     quantity: int
    >>> columns_of(event_form(Added))
    '`product` string, `quantity` bigint'
    """
    return ", ".join(f"`{name}` {field.sql}" for name, field in form.fields.items())


def _parsed_by_source(
    spark: SparkSession, broker: str, topic: str, form: EventForm, *, streaming: bool
) -> DataFrame:
    options = {"valueFormat": "json", "valueSchema": columns_of(form)} if form.fields else {}
    rows = _read(spark, broker, topic, options, streaming=streaming).where(_is_kind(form))
    return rows.select(*_about(), *([f"value.`{name}`" for name in form.fields]))


def _parsed_by_spark(
    spark: SparkSession, broker: str, topic: str, form: EventForm, *, streaming: bool
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

    rows = _read(spark, broker, topic, {}, streaming=streaming).where(_is_kind(form))
    current = rows.select(*_about(), _as_text("value").alias("data"))
    schema = current.schema
    raised = current.mapInArrow(_upcaster(form), schema)
    parsed = raised.withColumn("data", F.from_json("data", columns_of(form)))
    return parsed.select(*ABOUT, *[f"data.`{name}`" for name in form.fields])


def _upcaster(form: EventForm) -> Any:
    """A function that brings the column `data` of Arrow batches up to the current version."""

    def raise_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            versions = batch.column("type_version").to_pylist()
            texts = batch.column("data").to_pylist()
            raised = [
                text if version == form.version else json.dumps(form.upcast(json.loads(text), version))
                for version, text in zip(versions, texts, strict=True)
            ]
            place = batch.schema.get_field_index("data")
            yield batch.set_column(place, "data", pa.array(raised, pa.string()))

    return raise_all


def _read(
    spark: SparkSession, broker: str, topic: str, options: dict[str, str], *, streaming: bool
) -> DataFrame:
    source = (spark.readStream if streaming else spark.read).format("headrace")
    named = {
        "kafka.bootstrap.servers": broker,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **options,
    }
    return source.options(**named).load()


def _about() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    plain = {"id": _as_text("key"), "time": F.col("timestamp")}
    return [plain.get(name, _header(name) if name in _HEADERS else F.col(name)).alias(name) for name in ABOUT]


def _header(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    header, place, kind = _HEADERS[name]
    return F.expr(
        f"cast(cast(case when get(headers, {place}).key = '{header}' then get(headers, {place}).value "
        f"else get(filter(headers, each -> each.key = '{header}'), 0).value end as string) as {kind})"
    )


def _as_text(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).cast("string")


def _is_kind(form: EventForm) -> Column:
    return _header("type").isin(list(form.names))


def _check_names(form: EventForm) -> None:
    clash = sorted(set(form.fields) & set(ABOUT))
    if clash:
        raise Misuse(
            f"{form.name} has a field {clash[0]!r}, which every frame of events has as a column: read "
            "`store.df(aggregate)` and take it from `data`."
        )
