"""Events as frames of Spark: of all kinds with their fields as JSON, or of one kind with typed columns.

| column | type | |
|---|---|---|
| `id`, `version` | string, long | the aggregate, and its version after the event |
| `type`, `type_version` | string, int | the class of the event, as it was written |
| `time` | timestamp | when it was decided |
| `event_id`, `command_id`, `causation`, `correlation`, `actor` | string | |
| `partition`, `offset` | int, long | where it stands |
| `data` | string | the fields as JSON; of one kind of event they are columns instead |

Headers become columns, and fields of one kind are parsed, where the log is read; events of other kinds are
left out there. Events of older versions are brought up to the current one first, by the functions of their
class.

Spark does not tell a source in Python which columns a query uses. Each one that is there is cut out of the
log and handed over for every event, so a frame has only those that are asked for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.events.aggregate import aggregate_form
from headrace.events.event import event_form, newer_event
from headrace.events.topics import events_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from headrace.events.aggregate import Aggregate
    from headrace.events.event import Event, EventForm
    from headrace.events.values import Form

    Reader = DataFrameReader | DataStreamReader

_SOURCES: Final = {
    "id": ("key",),
    "version": ("ce_sequence",),
    "type": ("ce_type",),
    "type_version": ("ce_dataversion",),
    "time": ("timestamp",),
    "event_id": ("ce_id",),
    "command_id": ("ce_commandid",),
    "causation": ("ce_causationid", "ce_commandid"),
    "correlation": ("ce_correlationid", "ce_commandid"),
    "actor": ("ce_actor",),
    "partition": ("partition",),
    "offset": ("offset",),
}
"""Columns about an event, and what of its record says it: the first that is there."""
ABOUT: Final = tuple(_SOURCES)
DATA: Final = "data"
_NUMBERS: Final = {"ce_sequence": "long", "ce_dataversion": "int"}
"""Headers that are numbers."""


def event_frame(
    spark: SparkSession,
    broker: str,
    store: str,
    kind: type[Aggregate],
    event: type[Event] | None,
    columns: Sequence[str] | None,
    *,
    streaming: bool,
) -> DataFrame:
    """The events of a class of aggregates; of one kind with its fields as columns."""
    topic = events_topic(store, aggregate_form(kind).name)
    reader = (spark.readStream if streaming else spark.read).format("headrace")
    reader = reader.options(
        **{"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    )
    if event is None:
        chosen = _chosen(columns, (*ABOUT, DATA))
        values = [_as_text("value").alias(DATA)] if DATA in chosen else []
        rows = _load(reader, chosen, has_values=bool(values))
        return rows.select(*_about(chosen), *values).select(*chosen)
    form = event_form(event)
    if form not in aggregate_form(kind).events.values():
        raise Misuse(f"{kind.__name__} has no event {form.name}: it has no applier that takes one.")
    _check_names(form)
    chosen = _chosen(columns, (*ABOUT, *form.fields))
    reader = reader.option("whereHeaders", json.dumps({"ce_type": form.names}))
    return (_parsed_by_source if form.version == 1 else _parsed_by_spark)(reader, form, chosen)


def columns_of(fields: Mapping[str, Form]) -> str:
    """Fields of an event as Spark writes a schema.

    >>> from headrace.events import Event
    >>> class Added(Event):
    ...     product: str
    ...     quantity: int
    >>> columns_of(event_form(Added).fields)
    '`product` string, `quantity` bigint'
    """
    return ", ".join(f"`{name}` {field.sql}" for name, field in fields.items())


def _parsed_by_source(reader: Reader, form: EventForm, chosen: Sequence[str]) -> DataFrame:
    wanted = {name: field for name, field in form.fields.items() if name in chosen}
    if wanted:
        reader = reader.options(valueFormat="json", valueSchema=columns_of(wanted))
    needed = list(dict.fromkeys([*(name for name in chosen if name in _SOURCES), "type_version"]))
    rows = _load(reader, needed, has_values=bool(wanted)).where(_is_known_version(form))
    return rows.select(*_about(chosen), *[f"value.`{name}`" for name in wanted]).select(*chosen)


def _is_known_version(form: EventForm) -> Column:
    """Whether an event is of a version that the class knows; one of a newer version ends the query."""
    from pyspark.sql import functions as F  # noqa: N812

    version = F.col("ce_dataversion")
    newer = F.concat(
        F.lit(f"an event {form.name} of version "), version.cast("string"), F.lit(newer_event(form.version))
    )
    return F.when(version <= form.version, F.lit(True)).otherwise(F.raise_error(newer).cast("boolean"))


def _parsed_by_spark(reader: Reader, form: EventForm, chosen: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

    needed = list(dict.fromkeys([*(name for name in chosen if name in _SOURCES), "type_version"]))
    current = _load(reader, needed, has_values=True).select(*_about(needed), _as_text("value").alias(DATA))
    raised = current.mapInArrow(_upcaster(form), current.schema)
    parsed = raised.withColumn(DATA, F.from_json(DATA, columns_of(form.fields)))
    return parsed.select(*needed, *[f"{DATA}.`{name}`" for name in form.fields]).select(*chosen)


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


def _chosen(columns: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """The columns that are asked for, all if nothing was said, or `Misuse` for one that is not there."""
    if columns is None:
        return list(there)
    for name in columns:
        if name not in there:
            raise Misuse(f"events have no column {name!r}: choose from {', '.join(there)}.")
    if not columns:
        raise Misuse(f"name at least one column of the events: {', '.join(there)}.")
    return list(dict.fromkeys(columns))


def _load(reader: Reader, chosen: Sequence[str], *, has_values: bool) -> DataFrame:
    """The records, with what the chosen columns are made of."""
    sources = dict.fromkeys(source for name in chosen for source in _SOURCES.get(name, ()))
    headers = [name for name in sources if name.startswith("ce_")]
    if headers:
        typed = (f"{name} {_NUMBERS.get(name, 'string')}" for name in headers)
        reader = reader.option("headerColumns", ", ".join(typed))
    return reader.option("columns", ",".join([*sources, *(["value"] if has_values else [])])).load()


def _about(chosen: Sequence[str]) -> list[Column]:
    """The chosen columns that are not fields."""
    from pyspark.sql import functions as F  # noqa: N812

    return [
        (_as_text("key") if name == "id" else F.coalesce(*_SOURCES[name])).alias(name)
        for name in chosen
        if name in _SOURCES
    ]


def _as_text(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).cast("string")


def _check_names(form: EventForm) -> None:
    clash = sorted(set(form.fields) & set(ABOUT))
    if clash:
        raise Misuse(
            f"{form.name} has a field {clash[0]!r}, which every frame of events has as a column: read "
            "`store.df(aggregate)` and take it from `data`."
        )
