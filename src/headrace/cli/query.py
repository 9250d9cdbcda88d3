"""`headrace view`, `changes`, `query` and `search`: views and their changes, SQL, and search indexes."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.options import complete_view
from headrace.cli.output import RequestFailed, note, print_json, print_table, terminated_like_interrupt
from headrace.cli.session import connect
from headrace.errors import Misuse, did_you_mean
from headrace.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from headrace.cli.session import BrokerSession
    from headrace.feeds.catalog import ViewDescription
    from headrace.feeds.feed import Change


commands = typer.Typer(no_args_is_help=True, help="List the materialized views of jobs.")
UNKNOWN: Final = "TABLE_OR_VIEW_NOT_FOUND"
LIMIT: Final = 1_000


# Without a callback, typer would replace a group with a single command by that command.
@commands.callback()
def view() -> None:
    """List the materialized views of jobs."""


@commands.command("list")
def list_(*, broker: options.Broker = None, as_json: options.Json = False) -> None:
    """List the views, with their keys and columns and the jobs that fill them.

    Example: headrace view list
    """
    from headrace.feeds.catalog import read_views

    with connect(broker) as session:
        views = read_views(session.cluster).values()
    if as_json:
        print_json(list(views))
        return
    rows = [(entry.name, entry.key, ", ".join(entry.columns), entry.job) for entry in views]
    print_table(["view", "key", "columns", "job"], rows)


def changes(
    *,
    view: Annotated[
        str | None, typer.Argument(metavar="VIEW", help="Name of the view.", autocompletion=complete_view)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the changes until Ctrl-C.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TOKEN", help="Resume after the change with this token."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print changes as JSON, one per line, with their tokens.")
    ] = False,
    broker: options.Broker = None,
) -> None:
    """Print the rows of a view, and with --follow every later change.

    `headrace gateway` serves the changes to browsers and other HTTP clients.

    Example: headrace changes revenue --follow
    """
    if view is None:
        raise Misuse("name a view, such as `headrace changes revenue`; `headrace view list` shows them.")
    _print_change(view, broker, since=since, follow=follow, as_json=as_json)


def _print_change(view: str, broker: str | None, *, since: str | None, follow: bool, as_json: bool) -> None:
    from headrace.feeds.feed import ChangeFeed

    with (
        connect(broker) as session,
        terminated_like_interrupt(),
        ChangeFeed(view, str(session.address), since=since, follow=follow) as feed,
    ):
        printed = 0
        for batch in feed.batches():
            printed += len(batch)
            lines = "".join(_json_line(change) if as_json else _line(change) for change in batch)
            sys.stdout.write(printable(lines) if sys.stdout.isatty() else lines)
            sys.stdout.flush()
        if not printed:
            what = "rows" if since is None else "changes after that token"
            note(f"the view {view} has no {what} yet; --follow waits for them")


def _json_line(change: Change) -> str:
    return f'{change.to_json()[:-1]},"token":"{change.token}"}}\n'


def _line(change: Change) -> str:
    """The kind of change and the row as JSON; for a delete, the key."""
    if change.value is not None:
        return f"{change.kind:<6} {change.row_json()}\n"
    return f"{change.kind:<6} {change.key_json()}\n"


def query(
    *,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="Query in Spark SQL.")],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="TOPIC=FIELDS",
            help="Schema of a topic's JSON values: 'orders=product string, amount double'; repeatable.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows to print.")] = LIMIT,
    as_json: options.Json = False,
    broker: options.Broker = None,
) -> None:
    """Query the current content of views and topics with SQL.

    A table is a view, with its columns and current rows, or a topic, with key, value, partition, offset and
    timestamp of every record, or with --schema the fields of its values. Write names with dots or hyphens in
    backticks. The query runs on a local Spark, which takes seconds to start.

    Example: headrace query "SELECT product, sum(revenue) FROM revenue GROUP BY product"
    """
    started_at = time.monotonic()
    schemas = _read_schemas(schema)
    with connect(broker) as session:
        names = _Names(session, schemas)
        with _session() as spark:
            asked_at = time.monotonic()
            rows = _answer(spark, sql, names, limit + 1)
            asked_s = time.monotonic() - asked_at
    shown = rows.slice(0, limit)
    _print(shown, as_json=as_json)
    if rows.num_rows > limit:
        note(f"Only the first {limit} rows are shown; raise --limit to see more.")
    started_s = time.monotonic() - started_at - asked_s
    note(f"{_rows_text(shown.num_rows)} in {asked_s:.1f} s, after {started_s:.1f} s to start Spark")


def search(
    *,
    index: Annotated[str, typer.Argument(metavar="INDEX", help="Name or path of the index.")],
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help='Query such as "tea AND cup", or * for all rows.')
    ],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows to print.")] = 10,
    as_json: options.Json = False,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="State directory (default: HEADRACE_STATE, headrace.toml, or .headrace here).",
        ),
    ] = None,
) -> None:
    """Find rows in the search index of a job, best matches first.

    "tea cup" matches rows with either word, "tea AND cup" rows with both. A prefix searches one column:
    "name:tea", "price:[2 TO 5]", "at:[2026-01-01T00:00:00Z TO *]".

    Example: headrace search products "tea AND cup"
    """
    from headrace.sinks.search import search_index

    opened = search_index(index, state=state)
    hits = opened.find(query, limit=limit)
    total = opened.count(query)
    if as_json:
        print_json(hits)
    else:
        columns = list(dict.fromkeys(name for hit in hits for name in hit.row))
        rows = [[round(hit.score, 3), *(_json_cell(hit.row.get(name)) for name in columns)] for hit in hits]
        print_table(["score", *columns], rows)
    if total > len(hits):
        note(f"Only the best {len(hits)} of {total} rows are shown; raise --limit to see more.")


def _json_cell(value: object) -> object:
    if not isinstance(value, dict | list):
        return value
    from headrace.sinks.rows import to_json

    return to_json(value)


class _Names:
    """Resolves the names in a query to views and topics."""

    def __init__(self, session: BrokerSession, schemas: Mapping[str, str]) -> None:
        from headrace.feeds.catalog import read_views

        self._broker = str(session.address)
        self._schemas = schemas
        self._views = read_views(session.cluster)
        self._topics = session.cluster.topics()
        for topic in schemas:
            self._check(topic)

    def frame(self, spark: SparkSession, name: str) -> DataFrame:
        """The DataFrame for a table name."""
        if name in self._schemas:
            return _typed_topic(self._read(spark, name, self._schemas[name]))
        if name in self._views:
            return self._view(spark, self._views[name])
        self._check(name)
        return _topic(self._read(spark, name))

    def _check(self, name: str) -> None:
        if name not in self._topics:
            known = [*self._views, *(name for name, topic in self._topics.items() if not topic.internal)]
            raise Misuse(
                f"there is no view and no topic named {name!r}.{did_you_mean(name, known)} "
                "`headrace view list` and `headrace topic list` show what there is."
            )

    def _view(self, spark: SparkSession, view: ViewDescription) -> DataFrame:
        """The latest row of each key."""
        import json

        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        records = self._read(spark, view.topic, json.dumps(view.schema))
        newest = records.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("value"))
        return newest.filter("value is not null").select("value.*")

    def _read(self, spark: SparkSession, topic: str, schema: str | None = None) -> DataFrame:
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", self._broker)
        if schema is not None:
            reader = reader.option("valueFormat", "json").option("valueSchema", schema)
        return reader.option("subscribe", topic).load()


def _topic(records: DataFrame) -> DataFrame:
    return records.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "partition", "offset", "timestamp"
    )


def _typed_topic(records: DataFrame) -> DataFrame:
    return records.filter("value is not null").selectExpr(
        "value.*",
        "cast(key as string) _key",
        "partition _partition",
        "offset _offset",
        "timestamp _timestamp",
    )


def _answer(spark: SparkSession, sql: str, names: _Names, limit: int) -> pa.Table:
    """The rows of the query. A temporary view is created for each name that Spark reports as unknown."""
    from pyspark.errors import PySparkException

    given: set[str] = set()
    try:
        while True:
            try:
                return spark.sql(sql).limit(limit).toArrow()
            except PySparkException as error:
                name = _unknown_name(error)
                if name is None or name in given:
                    raise
            names.frame(spark, name).createOrReplaceTempView(_quoted(name))
            given.add(name)
    except PySparkException as error:
        from headrace.streams.explanation import explain

        raise RequestFailed(f"Spark cannot answer: {explain(error)}") from error
    finally:
        for name in given:
            spark.catalog.dropTempView(name)


def _unknown_name(error: PySparkException) -> str | None:
    """The unknown table name in Spark's error, if that is the error."""
    if error.getCondition() != UNKNOWN:
        return None
    relation = (error.getMessageParameters() or {}).get("relationName", "")
    name = relation.removeprefix("`").removesuffix("`")
    if "`.`" in name:
        raise Misuse(f"write a name with dots in backticks: `{name.replace('`.`', '.')}`.")
    return name.replace("``", "`")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _read_schemas(options: list[str] | None) -> dict[str, str]:
    schemas = {}
    for option in options or ():
        topic, equals, fields = option.partition("=")
        if not topic or not equals or not fields:
            raise Misuse(
                f"--schema {option!r} is not TOPIC=FIELDS: write 'orders=product string, amount double'."
            )
        schemas[topic] = fields
    return schemas


@contextmanager
def _session() -> Iterator[SparkSession]:
    """A local Spark session without log output; an existing session is reused and not stopped."""
    from pyspark import SparkContext

    from headrace.spark.session import open_session
    from headrace.streams.explanation import silence_spark

    silence_spark()
    is_ours = SparkContext._active_spark_context is None
    session = open_session("headrace-query")
    try:
        yield session
    finally:
        if is_ours:
            session.stop()


def _print(rows: pa.Table, *, as_json: bool) -> None:
    records: list[dict[str, Any]] = rows.to_pylist()
    if as_json:
        from headrace.feeds.view_log import to_json

        print_json(records, default=to_json)
        return
    print_table(rows.column_names, [[_cell(value) for value in record.values()] for record in records])


def _cell(value: Any) -> Any:
    """A value as a table shows it; numbers stay numbers, and are right-aligned."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, dict | list):
        import json

        from headrace.feeds.view_log import to_json

        return json.dumps(value, default=to_json, ensure_ascii=False)
    return str(value)


def _rows_text(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
