"""The works in Pathway, with one thread per core, without persistence: it starts over after a crash."""

import json
import os
import sys
from datetime import timedelta
from typing import Any

TASK = json.loads(sys.argv[1])
os.environ["PATHWAY_THREADS"] = str(TASK["cores"])  # it is read when the library is loaded

import pathway as pw  # noqa: E402

COMMIT_MS = 500
FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class Event(pw.Schema):
    key: int
    amount: float
    at: str


class Payment(pw.Schema):
    key: int
    paid: float
    at: str


class Row(pw.Schema):
    key: int = pw.column_definition(primary_key=True)
    name: str
    city: str


class Person(pw.Schema):
    key: int = pw.column_definition(primary_key=True)
    name: str
    dept: int


class Department(pw.Schema):
    key: int = pw.column_definition(primary_key=True)
    title: str


def main() -> None:
    """Run the work until the process is stopped."""
    kind = TASK["work"]["kind"]
    makers = {"table": _join_table, "streams": _join_streams, "view": _view}
    rows = makers[kind]() if kind in makers else _windows(TASK["work"])
    pw.io.kafka.write(
        rows, {"bootstrap.servers": TASK["bootstrap"]}, topic_name=TASK["output"], format="json"
    )
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def _read(role: str, schema: type[pw.Schema]) -> pw.Table:
    settings = {
        "bootstrap.servers": TASK["bootstrap"],
        "group.id": TASK["output"],
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": "1",
    }
    return pw.io.kafka.read(
        settings,
        topic=TASK[role],
        schema=schema,
        format="json",
        json_field_paths={"key": "/id"},  # `id` is a name of its own
        autocommit_duration_ms=COMMIT_MS,
    )


def _read_events(role: str = "events", schema: type[pw.Schema] = Event) -> pw.Table:
    return _read(role, schema).with_columns(at=pw.this.at.dt.strptime(FORMAT))


def _windows(work: dict[str, Any]) -> pw.Table:
    size, every, gap = (timedelta(milliseconds=work[name]) for name in ("size_ms", "every_ms", "gap_ms"))
    windows = {
        "tumbling": lambda: pw.temporal.tumbling(duration=size),
        "hopping": lambda: pw.temporal.sliding(hop=every, duration=size),
        "session": lambda: pw.temporal.session(max_gap=gap),
    }
    # Each change of a window is written, and replaces the row before. Told to give results once, it goes by
    # one time for all partitions, and leaves out what it reads of those that are behind.
    grouped = _read_events().windowby(pw.this.at, window=windows[work["kind"]](), instance=pw.this.key)
    return grouped.reduce(
        key=pw.this._pw_instance,
        window_start=pw.this._pw_window_start,
        window_end=pw.this._pw_window_end,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.amount),
    )


def _join_table() -> pw.Table:
    events, table = _read_events(), _read("table", Row)
    joined = events.asof_now_join(table, events.key == table.key, how=pw.JoinMode.LEFT)
    return joined.select(events.key, events.amount, events.at, table.name, table.city)


def _join_streams() -> pw.Table:
    within = timedelta(milliseconds=TASK["work"]["within_ms"])
    orders, payments = _read_events(), _read_events("payments", Payment)
    near = pw.temporal.interval(-within, within)
    joined = orders.interval_join(payments, orders.at, payments.at, near, orders.key == payments.key)
    return joined.select(orders.key, orders.amount, orders.at, payments.paid)


def _view() -> pw.Table:
    people, departments = _read("events", Person), _read("table", Department)
    joined = people.join(departments, people.dept == departments.key, how=pw.JoinMode.LEFT)
    return joined.select(people.key, people.name, people.dept, departments.title)


if __name__ == "__main__":
    main()
