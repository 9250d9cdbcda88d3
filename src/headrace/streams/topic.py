"""Where a job's rows go: a topic of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.streams.declarations import checked_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from headrace.columns.documents import RecordForm
    from headrace.streams.rows import OutputMode

TIMESTAMP: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""Spark would cut off microseconds."""
JSON_OPTIONS: Final = {"timestampFormat": TIMESTAMP, "ignoreNullFields": "false"}
READY: Final = frozenset({"key", "value", "headers", "partition"})
"""The columns that a raw output may have: those of Spark's own Kafka sink."""

KEYS: Final = frozenset({"string", "binary", "boolean", "byte", "short", "integer", "long"})
FRACTIONS: Final = frozenset({"float", "double"})
WRITTEN: Final = KEYS | FRACTIONS | {"timestamp", "date", "decimal"}
"""The types that our own writer knows, and those of them that it knows as the text of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that a job writes: each row as one JSON document, keyed by some of its columns.

    It is made when a job starts and it is not there; one that is there is left as it is.
    """

    name: str
    key: tuple[str, ...] = ()
    """The columns whose values are the record's key: one as its text, several as a JSON document."""
    partitions: int | None = None
    """How many, if the topic has to be made."""
    format: Literal["json", "raw"] = "json"
    """`raw` writes the columns `key`, `value` and `headers` as they are."""
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Kafka's settings of the topic, if it has to be made."""

    def __post_init__(self) -> None:
        checked_name(self.name, "topic")
        if self.format not in ("json", "raw"):
            raise Misuse(f"topic {self.name!r}: format {self.format!r} is not known: use json or raw.")
        if self.format == "raw" and self.key:
            raise Misuse(
                f"topic {self.name!r}: with format raw the key is the column `key`; leave `key=` out."
            )

    def mode_for(self, rows: DataFrame) -> OutputMode:  # noqa: ARG002  views look at the rows
        """How rows are written that do not say it themselves."""
        return "append"

    def shown(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that are written."""
        return rows

    def records(self, rows: DataFrame) -> DataFrame:
        """The rows as records: columns `value`, and `key` if there is one."""
        if self.format == "raw":
            return self._ready(rows)
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        self._check_columns(rows)
        value = F.to_json(F.struct(*(F.col(quoted(name)) for name in rows.columns)), JSON_OPTIONS).alias(
            "value"
        )
        return rows.select(self._key(rows).alias("key"), value) if self.key else rows.select(value)

    def form(self, rows: DataFrame) -> RecordForm | None:
        """How tasks make records of rows, the same as `records` gives; None where Spark has to do it."""
        if self.format == "raw":
            return None
        self._check_columns(self.shown(rows))
        return self._form(rows) if is_written_here(rows, self.key) else None

    def _form(self, rows: DataFrame) -> RecordForm:
        from headrace.columns.documents import RecordForm

        return RecordForm(columns=tuple(rows.columns), key=self.key)

    def _key(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        columns = [F.col(quoted(name)) for name in self.key]
        if len(columns) == 1:
            return _text(columns[0], rows.schema[self.key[0]].dataType)
        return F.to_json(F.struct(*columns), JSON_OPTIONS)

    def _check_columns(self, rows: DataFrame) -> None:
        twice = {name for name in rows.columns if rows.columns.count(name) > 1}
        if twice:
            raise Misuse(
                f"the rows for topic {self.name!r} have two columns named {_listed(twice)}: rename one."
            )
        missing = set(self.key) - set(rows.columns)
        if missing:
            raise Misuse(
                f"topic {self.name!r} is keyed by {_listed(missing)}, but the rows have only the columns "
                f"{_listed(rows.columns)}."
            )

    def _ready(self, rows: DataFrame) -> DataFrame:
        if "value" not in rows.columns or not set(rows.columns) <= READY:
            raise Misuse(
                f"topic {self.name!r} has format raw: its rows need a column `value`, and may have `key`, "
                f"`headers` and `partition`, but they have {_listed(rows.columns)}."
            )
        return rows


def _text(column: Column, kind: DataType) -> Column:
    """The column as the text of a key; what has parts becomes JSON, bytes stay as they are."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind.typeName() in ("struct", "map", "array"):
        return F.to_json(column, JSON_OPTIONS)
    return column if kind.typeName() == "binary" else column.cast("string")


def is_written_here(rows: DataFrame, key: Sequence[str]) -> bool:
    """Whether our own writer gives the same text for rows and keys as Spark does.

    It knows columns without parts, and the times of UTC. A key must be the same text whoever writes it, and
    that of floating-point numbers depends on the version of Java; alone, the key is a cast, with other rules
    for times and decimals than a document has.
    """
    types = {field.name: field.dataType.typeName() for field in rows.schema}
    keys = {types[name] for name in key}
    is_utc = rows.sparkSession.conf.get("spark.sql.session.timeZone") == "UTC"
    return (
        bool(types)
        and set(types.values()) <= WRITTEN
        and keys <= (WRITTEN - FRACTIONS if len(key) > 1 else KEYS)
        and (is_utc or "timestamp" not in types.values())
    )


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
