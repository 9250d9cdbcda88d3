"""What a view over tables is made of: which columns it has, where they come from, and what finds what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import Misuse
from headrace.sinks.sink import DELETED
from headrace.streams.columns import key_pairs, listed, names_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from headrace.streams.rows import On
    from headrace.streams.table import Table
    from headrace.tables.view_join import JoinedRows, ViewShape
    from headrace.tables.view_table import WholeRows

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

    from headrace.tables.view_table import WholeRows

    row_type = to_arrow_type(_columns(table), timezone="UTC")
    return WholeRows(
        topic=table.topic, row_type=row_type, key=table.key, keep_us=0, time_unit=table.time_unit
    )
