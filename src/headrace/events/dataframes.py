"""Events as Spark DataFrames: of all classes with their fields as JSON, or of one class with typed columns.

| column | type | |
|---|---|---|
| `id`, `version` | string, long | the aggregate, and its version after the event |
| `type`, `type_version` | string, int | the class of the event, as it was written |
| `time` | timestamp | when it was decided |
| `event_id`, `command_id`, `causation_id`, `correlation_id`, `actor` | string | |
| `partition`, `offset` | int, long | the position in the topic |
| `data` | string | the fields as JSON; for one class of events they are columns instead |

The source turns headers into columns, parses the fields of one class, and filters events of other classes.
Events of older versions are first upcast to the current one.

Spark does not pass the columns that a query uses to a source in Python. Each column is read for every event,
so a DataFrame has only those that are requested.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.events.aggregate import aggregate_schema
from headrace.events.event import event_schema, newer_event
from headrace.events.topics import events_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from headrace.events.aggregate import Aggregate
    from headrace.events.codecs import Codec
    from headrace.events.event import Event, EventSchema

    Reader = DataFrameReader | DataStreamReader

_SOURCES: Final = {
    "id": ("key",),
    "version": ("ce_sequence",),
    "type": ("ce_type",),
    "type_version": ("ce_dataversion",),
    "time": ("timestamp",),
    "event_id": ("ce_id",),
    "command_id": ("ce_commandid",),
    "causation_id": ("ce_causationid", "ce_commandid"),
    "correlation_id": ("ce_correlationid", "ce_commandid"),
    "actor": ("ce_actor",),
    "partition": ("partition",),
    "offset": ("offset",),
}
"""Metadata columns, and the parts of a record that hold them; the first one that is not null counts."""
METADATA: Final = tuple(_SOURCES)
DATA: Final = "data"
_NUMBERS: Final = {"ce_sequence": "long", "ce_dataversion": "int"}
"""The Spark types of headers that are numbers."""


def event_dataframe(
    spark: SparkSession,
    broker: str,
    store: str,
    kind: type[Aggregate],
    event: type[Event] | None,
    columns: Sequence[str] | None,
    *,
    streaming: bool,
) -> DataFrame:
    """The events of a class of aggregates; with `event`, only of that class, with its fields as columns."""
    topic = events_topic(store, aggregate_schema(kind).name)
    reader = (spark.readStream if streaming else spark.read).format("headrace")
    reader = reader.options(
        **{"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    )
    if event is None:
        chosen = _chosen(columns, (*METADATA, DATA))
        values = [_as_text("value").alias(DATA)] if DATA in chosen else []
        rows = _load(reader, chosen, has_values=bool(values))
        return rows.select(*_metadata(chosen), *values).select(*chosen)
    schema = event_schema(event)
    if schema not in aggregate_schema(kind).events.values():
        raise Misuse(f"{kind.__name__} has no event {schema.name}: it has no applier for it.")
    _check_names(schema)
    chosen = _chosen(columns, (*METADATA, *schema.fields))
    reader = reader.option("whereHeaders", json.dumps({"ce_type": schema.names}))
    return (_parsed_by_source if schema.version == 1 else _parsed_by_spark)(reader, schema, chosen)


def columns_of(fields: Mapping[str, Codec]) -> str:
    """The fields of an event as a Spark schema.

    >>> from headrace.events import Event
    >>> class Added(Event):
    ...     product: str
    ...     quantity: int
    >>> columns_of(event_schema(Added).fields)
    '`product` string, `quantity` bigint'
    """
    return ", ".join(f"`{name}` {field.sql}" for name, field in fields.items())


def _parsed_by_source(reader: Reader, schema: EventSchema, chosen: Sequence[str]) -> DataFrame:
    wanted = {name: field for name, field in schema.fields.items() if name in chosen}
    if wanted:
        reader = reader.options(valueFormat="json", valueSchema=columns_of(wanted))
    needed = list(dict.fromkeys([*(name for name in chosen if name in _SOURCES), "type_version"]))
    rows = _load(reader, needed, has_values=bool(wanted)).where(_is_known_version(schema))
    return rows.select(*_metadata(chosen), *[f"value.`{name}`" for name in wanted]).select(*chosen)


def _is_known_version(schema: EventSchema) -> Column:
    """True for events of a known version; an event of a newer version ends the query with an error."""
    from pyspark.sql import functions as F  # noqa: N812

    version = F.col("ce_dataversion")
    newer = F.concat(
        F.lit(f"an event {schema.name} of version "),
        version.cast("string"),
        F.lit(newer_event(schema.version)),
    )
    return F.when(version <= schema.version, F.lit(True)).otherwise(F.raise_error(newer).cast("boolean"))


def _parsed_by_spark(reader: Reader, schema: EventSchema, chosen: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the usual name

    needed = list(dict.fromkeys([*(name for name in chosen if name in _SOURCES), "type_version"]))
    current = _load(reader, needed, has_values=True).select(*_metadata(needed), _as_text("value").alias(DATA))
    upcast = current.mapInArrow(_upcaster(schema), current.schema)
    parsed = upcast.withColumn(DATA, F.from_json(DATA, columns_of(schema.fields)))
    return parsed.select(*needed, *[f"{DATA}.`{name}`" for name in schema.fields]).select(*chosen)


def _upcaster(schema: EventSchema) -> Any:
    """A function that upcasts the column `data` of Arrow batches to the current version."""

    def upcast_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            versions = batch.column("type_version").to_pylist()
            texts = batch.column("data").to_pylist()
            upcast = [
                text if version == schema.version else json.dumps(schema.upcast(json.loads(text), version))
                for version, text in zip(versions, texts, strict=True)
            ]
            index = batch.schema.get_field_index("data")
            yield batch.set_column(index, "data", pa.array(upcast, pa.string()))

    return upcast_all


def _chosen(columns: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The requested columns, by default all, or `Misuse` for an unknown one."""
    if columns is None:
        return list(known)
    for name in columns:
        if name not in known:
            raise Misuse(f"events have no column {name!r}: choose from {', '.join(known)}.")
    if not columns:
        raise Misuse(f"name at least one column of the events: {', '.join(known)}.")
    return list(dict.fromkeys(columns))


def _load(reader: Reader, chosen: Sequence[str], *, has_values: bool) -> DataFrame:
    """The records, with the parts that the chosen columns need."""
    sources = dict.fromkeys(source for name in chosen for source in _SOURCES.get(name, ()))
    headers = [name for name in sources if name.startswith("ce_")]
    if headers:
        typed = (f"{name} {_NUMBERS.get(name, 'string')}" for name in headers)
        reader = reader.option("headerColumns", ", ".join(typed))
    return reader.option("columns", ",".join([*sources, *(["value"] if has_values else [])])).load()


def _metadata(chosen: Sequence[str]) -> list[Column]:
    """The chosen metadata columns."""
    from pyspark.sql import functions as F  # noqa: N812

    return [
        (_as_text("key") if name == "id" else F.coalesce(*_SOURCES[name])).alias(name)
        for name in chosen
        if name in _SOURCES
    ]


def _as_text(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(name).cast("string")


def _check_names(schema: EventSchema) -> None:
    clash = sorted(set(schema.fields) & set(METADATA))
    if clash:
        raise Misuse(
            f"{schema.name} has a field {clash[0]!r}, which is also a metadata column: read "
            "`store.df(aggregate)` and take the field from `data`."
        )
