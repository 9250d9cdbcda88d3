"""The works in PyFlink: its SQL, from one topic to another.

Checkpoints are taken every ten seconds, into files, for those in memory may not be larger than 5 MB; results
are written at least once, which is faster than in transactions, as Headrace writes them.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

CHECKPOINT = "10 s"
EVENT = (
    "id BIGINT, {field} DOUBLE, `at` TIMESTAMP_LTZ(3), WATERMARK FOR `at` AS `at` - INTERVAL '{late}' SECOND"
)
PLAIN = {
    "connector": "kafka",
    "format": "json",
    "json.timestamp-format.standard": "ISO-8601",
    "scan.startup.mode": "earliest-offset",
}
KEYED = {
    "connector": "upsert-kafka",
    "key.format": "raw",
    "key.fields-prefix": "k_",
    "value.format": "json",
    "value.fields-include": "EXCEPT_KEY",
}
COUNTS = "COUNT(*) AS n, SUM(amount) AS total"


def main() -> None:
    """Run one statement until the process is stopped."""
    task = json.loads(sys.argv[1])
    tables = _environment(task)
    work = task["work"]
    query, columns = QUERIES[work["kind"]](tables, task)
    tables.execute_sql(_table("output", task, columns, keyed=work["kind"] == "view"))
    tables.execute_sql(f"INSERT INTO output {query}").wait()


def _environment(task: dict[str, Any]) -> TableEnvironment:
    settings = {
        "pipeline.jars": os.environ["BENCH_JAR"],
        "parallelism.default": str(task["cores"]),
        "execution.checkpointing.interval": CHECKPOINT,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": Path(tempfile.mkdtemp()).as_uri(),
        "table.local-time-zone": "UTC",
        "taskmanager.memory.process.size": "4g",
        "pipeline.object-reuse": "true",
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


def _table(name: str, task: dict[str, Any], columns: str, *, keyed: bool = False) -> str:
    """The statement that declares a topic as a table: rows replace one another by key if it is `keyed`."""
    options = {
        "topic": task[name],
        "properties.bootstrap.servers": task["bootstrap"],
        "properties.isolation.level": "read_committed",
    }
    options |= KEYED if keyed else {**PLAIN, "properties.group.id": task["output"]}
    listed = ", ".join(f"'{option}' = '{value}'" for option, value in options.items())
    primary = ", PRIMARY KEY (k_id) NOT ENFORCED" if keyed else ""
    return f"CREATE TABLE `{name}` ({columns}{primary}) WITH ({listed})"


def _events(
    tables: TableEnvironment, task: dict[str, Any], name: str = "events", field: str = "amount"
) -> None:
    late = f"{task['work']['lateness_ms'] / 1000:g}"
    tables.execute_sql(_table(name, task, EVENT.format(field=field, late=late)))


def _windows(function: str) -> Any:
    def query(tables: TableEnvironment, task: dict[str, Any]) -> tuple[str, str]:
        _events(tables, task)
        work = task["work"]
        lengths = {
            name: f"INTERVAL '{work[name] / 1000:g}' SECOND" for name in ("size_ms", "every_ms", "gap_ms")
        }
        windows = function.format(**lengths)
        keys = "window_start, window_end, id"
        text = f"SELECT {keys}, {COUNTS} FROM TABLE({windows}) GROUP BY {keys}"
        return text, "window_start TIMESTAMP(3), window_end TIMESTAMP(3), id BIGINT, n BIGINT, total DOUBLE"

    return query


def _sliding(tables: TableEnvironment, task: dict[str, Any]) -> tuple[str, str]:
    _events(tables, task)
    # Both ends of a range belong to it: (t - 60 s, t] begins a millisecond later.
    before = f"INTERVAL '{(task['work']['size_ms'] - 1) / 1000:.3f}' SECOND(3, 3)"
    over = f"PARTITION BY id ORDER BY `at` RANGE BETWEEN {before} PRECEDING AND CURRENT ROW"
    text = (
        f"SELECT `at`, id, COUNT(*) OVER w AS n, SUM(amount) OVER w AS total FROM events WINDOW w AS ({over})"
    )
    return text, "`at` TIMESTAMP_LTZ(3), id BIGINT, n BIGINT, total DOUBLE"


def _join_table(tables: TableEnvironment, task: dict[str, Any]) -> tuple[str, str]:
    _events(tables, task)
    since = "since TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', WATERMARK FOR since AS since"
    columns = f"k_id STRING, id BIGINT, name STRING, city STRING, {since}"
    tables.execute_sql(_table("table", task, columns, keyed=True))
    text = (
        "SELECT e.id, e.amount, e.`at`, p.name, p.city FROM events AS e "
        "LEFT JOIN `table` FOR SYSTEM_TIME AS OF e.`at` AS p ON CAST(e.id AS STRING) = p.k_id"
    )
    return text, "id BIGINT, amount DOUBLE, `at` TIMESTAMP_LTZ(3), name STRING, city STRING"


def _join_streams(tables: TableEnvironment, task: dict[str, Any]) -> tuple[str, str]:
    _events(tables, task)
    _events(tables, task, "payments", "paid")
    within = f"INTERVAL '{task['work']['within_ms'] // 60_000}' MINUTE"
    # A row has one event time: the other is a plain column.
    text = (
        "SELECT e.id, e.amount, e.`at`, p.paid, CAST(p.`at` AS TIMESTAMP(3)) FROM events AS e "
        "JOIN payments AS p "
        f"ON e.id = p.id AND p.`at` BETWEEN e.`at` - {within} AND e.`at` + {within}"
    )
    return text, "id BIGINT, amount DOUBLE, `at` TIMESTAMP_LTZ(3), paid DOUBLE, paid_at TIMESTAMP(3)"


def _view(tables: TableEnvironment, task: dict[str, Any]) -> tuple[str, str]:
    people = "k_id STRING, id BIGINT, name STRING, dept BIGINT"
    tables.execute_sql(_table("events", task, people, keyed=True))
    tables.execute_sql(_table("table", task, "k_id STRING, id BIGINT, title STRING", keyed=True))
    text = (
        "SELECT e.k_id, e.id, e.name, e.dept, d.title FROM events AS e "
        "LEFT JOIN `table` AS d ON CAST(e.dept AS STRING) = d.k_id ON CONFLICT DO DEDUPLICATE"
    )
    return text, f"{people}, title STRING"


_TIMED = "TABLE events, DESCRIPTOR(`at`)"
QUERIES = {
    "tumbling": _windows(f"TUMBLE({_TIMED}, {{size_ms}})"),
    "hopping": _windows(f"HOP({_TIMED}, {{every_ms}}, {{size_ms}})"),
    "session": _windows("SESSION(TABLE events PARTITION BY id, DESCRIPTOR(`at`), {gap_ms})"),
    "sliding": _sliding,
    "table": _join_table,
    "streams": _join_streams,
    "view": _view,
}

if __name__ == "__main__":
    main()
