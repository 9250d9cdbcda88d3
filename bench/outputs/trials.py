"""The systems: a job of Headrace's, Spark's JDBC writer with a merge, and a loop over a Python driver."""

import itertools
import time
from typing import Any

import psycopg
import redis as redis_driver
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from bench.outputs.aims import POSTGRES, REDIS
from bench.outputs.stage import SCHEMA, TOPIC, Moment, Stage
from headrace import App, postgres, redis
from headrace.sinks.sink import Sink
from headrace.streams.job_run import JobRun
from headrace.streams.run_context import RunContext

COLUMNS = ("product", "revenue", "orders", "at")
TABLE = "product text PRIMARY KEY, revenue double precision, orders bigint, at timestamptz"
UPSERT = (
    "ON CONFLICT (product) DO UPDATE SET revenue = excluded.revenue, orders = excluded.orders, "
    "at = excluded.at"
)
MERGE = f"INSERT INTO sales ({', '.join(COLUMNS)}) SELECT {', '.join(COLUMNS)} FROM staging {UPSERT}"
INSERT = f"INSERT INTO sales ({', '.join(COLUMNS)}) VALUES (%s, %s, %s, %s) {UPSERT}"
MARK = "UPDATE mark SET batch = %s"
CHECKED = 1_000
"""The number of hashes whose contents are checked."""


def _job(stage: Stage, sink: Sink) -> list[Moment]:
    """When each batch of a job was committed, in its target and in the log."""
    app = App("bench")
    sales = app.stream(TOPIC, SCHEMA, max_records=stage.plan.rows)
    job = app.job(into=sink, name="upserts")(lambda: sales.df)
    ends: list[Moment] = []

    def step(name: str, _: int) -> None:
        if name == "committed":
            ends.append(Moment.now())

    run_context = RunContext(
        spark=stage.spark, bootstrap=stage.bootstrap, cluster=stage.cluster, state=stage.new_folder()
    )
    run_context.folder(job).reset(kind="stream")  # the log has markers of the job from the previous run
    run = JobRun(job, run_context, once=True, steps=step)
    run.start()
    while run.is_active():
        time.sleep(0.05)
    return ends


def postgres_by_headrace(stage: Stage) -> None:
    """`into=postgres(…)`: exactly-once, with a batch marker."""
    database = stage.database()
    stage.note(POSTGRES, "headrace", _job(stage, postgres("sales", key="product", url=database)))
    _check(stage, database)


def postgres_by_jdbc(stage: Stage) -> None:
    """The last row of each key by Spark's JDBC writer into a staging table, then a merge with a batch
    marker."""
    database = stage.database()
    user, _, server = database.removeprefix("postgres://").partition("@")
    name, _, password = user.partition(":")
    place = f"jdbc:postgresql://{server}?user={name}&password={password}&reWriteBatchedInserts=true"
    with psycopg.connect(database, autocommit=True) as connection:
        _make_tables(connection)
        connection.execute(f"CREATE UNLOGGED TABLE staging ({TABLE.replace(' PRIMARY KEY', '')})")

        def write(rows: DataFrame, batch: int) -> None:
            if _is_marked(connection, batch):
                return
            connection.execute("TRUNCATE staging")
            writer = _last_of_each_key(rows).write.format("jdbc").option("url", place)
            writer = writer.option("dbtable", "staging").option("driver", "org.postgresql.Driver")
            writer.option("batchsize", "10000").mode("append").save()
            with connection.transaction():
                connection.execute(MERGE)
                connection.execute(MARK, [batch])

        stage.note(POSTGRES, "jdbc", stage.for_each_batch(write))
    _check(stage, database)


def _last_of_each_key(rows: DataFrame) -> DataFrame:
    """The last row of each key: PostgreSQL rejects two rows with one key in a merge."""
    others = F.struct(*COLUMNS[1:])
    return rows.groupBy("product").agg(F.max_by(others, "orders").alias("last")).select("product", "last.*")


def postgres_by_driver(stage: Stage) -> None:
    """Rows collected, and psycopg's `executemany` in one transaction with a batch marker."""
    database = stage.database()
    with psycopg.connect(database, autocommit=True) as connection:
        _make_tables(connection)

        def write(rows: DataFrame, batch: int) -> None:
            if _is_marked(connection, batch):
                return
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(INSERT, rows.collect())
                cursor.execute(MARK, [batch])

        stage.note(POSTGRES, "driver", stage.for_each_batch(write))
    _check(stage, database)


def redis_by_headrace(stage: Stage) -> None:
    """`into=redis(…)`: exactly-once, with a batch marker."""
    _empty(stage)
    stage.note(REDIS, "headrace", _job(stage, redis("sales:{product}", url=stage.redis.url)))
    _check_redis(stage)


def redis_by_driver(stage: Stage) -> None:
    """Rows collected, and one HSET for each in a pipeline of redis-py, which is a MULTI, with a batch
    marker."""
    _empty(stage)
    with redis_driver.Redis.from_url(stage.redis.url) as client:

        def write(rows: DataFrame, batch: int) -> None:
            if int(client.get("mark") or -1) >= batch:
                return
            with client.pipeline() as pipeline:
                for row in rows.collect():
                    fields = {**row.asDict(), "at": row["at"].isoformat()}
                    pipeline.hset(f"sales:{row['product']}", mapping=fields)
                pipeline.set("mark", batch)
                pipeline.execute()

        stage.note(REDIS, "driver", stage.for_each_batch(write))
    _check_redis(stage)


TRIALS = {
    "headrace": [postgres_by_headrace, redis_by_headrace],
    "jdbc": [postgres_by_jdbc],
    "driver": [postgres_by_driver, redis_by_driver],
}
TITLES = {"headrace": "Headrace", "jdbc": "Spark's JDBC writer and a merge", "driver": "Python driver loop"}


def _make_tables(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"CREATE TABLE sales ({TABLE})")
    connection.execute("CREATE TABLE mark (batch bigint); INSERT INTO mark VALUES (-1)")


def _is_marked(connection: psycopg.Connection[Any], batch: int) -> bool:
    row = connection.execute("SELECT batch >= %s FROM mark", [batch]).fetchone()
    return row is not None and bool(row[0])


def _check(stage: Stage, database: str) -> None:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT count(*), sum(orders)::bigint FROM sales").fetchone()
    newest = stage.plan.newest()
    assert found == (len(newest), sum(newest.values())), found


def _empty(stage: Stage) -> None:
    with redis_driver.Redis.from_url(stage.redis.url) as client:
        client.flushall()


def _check_redis(stage: Stage) -> None:
    newest = stage.plan.newest()
    some = dict(itertools.islice(newest.items(), CHECKED))
    with redis_driver.Redis.from_url(stage.redis.url) as client:
        count = sum(1 for _ in client.scan_iter("sales:*", count=10_000))
        with client.pipeline() as pipeline:
            for key in some:
                pipeline.hget(f"sales:product-{key}", "orders")
            found = dict(zip(some, map(int, pipeline.execute()), strict=True))
    assert (count, found) == (len(newest), some), count
