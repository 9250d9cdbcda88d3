"""A topic as a table: for every key the row that counts, at each moment of its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.declarations import TimeUnit, checked_name, read_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType

    from headrace.engine.columns import On
    from headrace.streams.job import Job
    from headrace.streams.table_view import How, TableView
    from headrace.streams.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The newest row of every key of a topic, and the rows before it for as long as is declared.

    A record without a value deletes its key.
    """

    topic: str
    schema: str | None
    """The fields of the value, as DDL or as the JSON of a StructType; None for those of `view`."""
    key: tuple[str, ...]
    """The columns that name a row."""
    valid_from: str | None = None
    """The timestamp column that says since when a row counts; otherwise the record's timestamp does."""
    history_retention: str = "1 day"
    """How long a row that was replaced can still be joined, in event time."""
    format: Literal["json"] = "json"
    time_unit: TimeUnit = "auto"
    """What numbers count that are read as timestamps; `auto` goes by their size."""
    partitions: int | None = None
    """With how many partitions the topic is created if it does not exist; without it, it has to exist."""
    view: View | None = None
    """The view that the table reads, if its columns are those of the view."""
    writer: Callable[[], Job | None] = field(default=lambda: None, compare=False, repr=False)
    """The job of the application that writes the view, if there is one."""
    declared_at: str = field(default="", compare=False, repr=False)
    """The line of the user's code that declares it."""

    def __post_init__(self) -> None:
        checked_name(self.topic, "topic")
        if (self.schema is None) == (self.view is None):
            raise Misuse(
                f"the table of {self.topic!r} needs a schema: name the fields of its values, or give "
                "app.table the view that it reads."
            )
        if not self.key:
            raise Misuse(f'the table of {self.topic!r} needs a key: name the columns, for example key="id".')
        if self.time_unit not in get_args(TimeUnit):
            raise Misuse(
                f"the table of {self.topic!r}: time_unit {self.time_unit!r} is not known: use "
                f"{', '.join(get_args(TimeUnit))}."
            )
        milliseconds_of(self.history_retention, f"history_retention of the table of {self.topic!r}")
        if self.partitions is not None and self.partitions < 1:
            raise Misuse(f"the table of {self.topic!r}: partitions is at least 1.")

    def struct(self) -> StructType:
        """The columns of a row, as Spark reads the schema; each of them may be missing in a value."""
        from pyspark.sql.types import StructField, StructType

        schema = self.schema
        if self.view is not None:
            from headrace.streams.view import view_schema

            schema = view_schema(self.view, self.writer())
        assert schema is not None, "a table has a schema or a view"
        declared = read_schema(schema, f"the table of {self.topic!r}", self.declared_at)
        return StructType([StructField(column.name, column.dataType) for column in declared])

    @property
    def changes(self) -> TableView:
        """What changes in the table, for a job to hand on.

        These are the rows that are new or different, and, with a column `_deleted`, those that are gone.
        `.changelog` has them with weights, for sums.
        """
        from headrace.streams.table_view import TableView

        return TableView(first=self)

    def join(self, other: Table, on: On, *, how: How = "left") -> TableView:
        """A view over both tables, for a job to keep: each row with the row of `other` that it points to.

        `on={"dept": "id"}` names the columns that hold the other table's key; `how="inner"` leaves out rows
        that point to none. `.join(…)` can follow again.
        """
        from headrace.streams.table_view import TableView

        return TableView(first=self).join(other, on, how=how)
