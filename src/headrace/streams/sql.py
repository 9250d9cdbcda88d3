"""Streaming SQL: a query whose tables are the application's streams, by the names of their topics.

While the query is made, each stream that it names is a temporary view of the session; then the view is gone
again, and nothing of it can be seen by another job. Spark itself says which names it misses, so that only the
streams that a query really reads are read by the job.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.engine.columns import listed, quoted
from headrace.engine.logical import current_plan
from headrace.errors import Misuse
from headrace.streams.event_time import marked_time, watermark_delay_of
from headrace.streams.explanation import root_cause
from headrace.streams.rows import Operators, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.streams.rows import OutputMode
    from headrace.streams.stream import Stream
    from headrace.streams.table import Table

MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"

_views = threading.Lock()
"""Jobs of one session may be made at the same time, and their views have the same names."""


def sql_rows(
    query: str,
    *,
    streams: Sequence[Stream],
    tables: Sequence[Table] = (),
    more: Mapping[str, Any] | None = None,
    output_mode: OutputMode | None = None,
) -> Rows:
    """The rows of a query over streams by their topics, and over `more` by the names given there."""
    spark = current_plan("app.sql(…)").spark
    sources = _sources(streams, more or {})
    with _views, _closing_views(spark) as views:
        while True:
            missing = _missing(spark, query)
            if not isinstance(missing, str):
                break
            if missing not in sources:
                raise Misuse(_unknown(missing, sources, tables))
            _frame(missing, sources[missing]).createTempView(quoted(missing))
            views.append(missing)
    return _as_rows(missing, output_mode)


def _sources(streams: Sequence[Stream], more: Mapping[str, Any]) -> dict[str, Any]:
    by_topic: dict[str, Any] = {}
    for stream in streams:
        if by_topic.setdefault(stream.topic, stream) != stream:
            by_topic[stream.topic] = None  # two streams that differ: which one is meant cannot be told
    return by_topic | dict(more)


def _frame(name: str, source: Any) -> DataFrame:
    if source is None:
        raise Misuse(
            f"two streams of this application read the topic {name!r}, and SQL cannot tell them apart: give "
            "the one that is meant a name, as in app.sql(query, clicks=clicks)."
        )
    return source.df if isinstance(source, Operators) else source


@contextmanager
def _closing_views(spark: SparkSession) -> Iterator[list[str]]:
    """A list of views that are dropped at the end."""
    views: list[str] = []
    try:
        yield views
    finally:
        for view in views:
            spark.catalog.dropTempView(view)  # by its name as it is: only what is parsed needs backticks


def _missing(spark: SparkSession, query: str) -> DataFrame | str:
    """The query's DataFrame; or the name that it needs and the session does not have yet."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(query)
    except ParseException as error:
        raise Misuse(f"the SQL cannot be read: {root_cause(error).message}") from None
    except AnalysisException as error:
        if error.getCondition() != MISSING:
            raise Misuse(f"the SQL cannot be run: {root_cause(error).message}") from None
        return _plain((error.getMessageParameters() or {})["relationName"])


def _plain(name: str) -> str:
    """A name without backticks; one of several parts keeps them, for no topic is called so.

    >>> _plain("`shop.orders`"), _plain("`shop`.`orders`")
    ('shop.orders', '`shop`.`orders`')
    """
    inner = name[1:-1] if name.startswith("`") and name.endswith("`") else name
    return name if "`.`" in inner else inner.replace("``", "`")


def _unknown(name: str, sources: Mapping[str, Any], tables: Sequence[Table]) -> str:
    whole = name.replace("`", "")
    if whole in sources:
        return f"the SQL names {whole}: a topic with dots in its name is written in backticks, `{whole}`."
    if any(table.topic == whole for table in tables):
        example = "app.sql(query, enriched=orders.join(users, …))"
        return f"the SQL names {whole!r}, which is a table: join it first, and name the result: {example}."
    known = f"its streams are {listed(sorted(sources))}" if sources else "it has no streams"
    return f"the SQL names {whole!r}, which is no stream of the application: {known}. Declare it first."


def _as_rows(frame: DataFrame, mode: OutputMode | None) -> Rows:
    time = marked_time(frame)
    watermark_delay = None if time is None else watermark_delay_of(frame, time)
    return Rows(frame=frame, event_time=time, watermark_delay=watermark_delay, mode=mode)
