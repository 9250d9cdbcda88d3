"""The works in Bytewax, in one process per core, without recovery: it starts over after a crash."""

import json
import socket
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.testing import cluster_main

from bench.streams.peers.workers import start_workers

BATCH = 10_000
ALIGN_TO = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = {"fetch.queue.backoff.ms": "1"}


def flow_of(task: dict[str, Any]) -> Dataflow:
    """The dataflow of a task."""
    flow, kind = Dataflow("bench"), task["work"]["kind"]
    events = _read(flow, task, "events")
    if kind == "table":
        rows = _join_table(events, _read(flow, task, "table"))
    elif kind == "streams":
        joined = op.join("join", events, _read(flow, task, "payments"), emit_mode="complete")
        rows = op.flat_map_batch(
            "rows", joined, lambda pairs: [_row(key, one | other) for key, (one, other) in pairs]
        )
    else:
        rows = _windows(events, task["work"])
    op.output("output", rows, KafkaSink([task["bootstrap"]], task["output"]))
    return flow


def _read(flow: Dataflow, task: dict[str, Any], role: str) -> Any:
    source = KafkaSource(
        [task["bootstrap"]], [task[role]], tail=True, add_config=dict(SOURCE), batch_size=BATCH
    )
    return op.flat_map_batch(f"parse {role}", op.input(role, flow, source), _parse)


def _parse(messages: Iterable[Any]) -> list[tuple[str, dict[str, Any]]]:
    parsed = [json.loads(message.value) for message in messages]
    return [(str(event["id"]), event) for event in parsed]


def _row(key: str, row: dict[str, Any]) -> Any:
    return KafkaSinkMessage(key=key.encode(), value=json.dumps(row).encode())


def _windows(events: Any, work: dict[str, Any]) -> Any:
    size, every, gap, late = (
        timedelta(milliseconds=work[name]) for name in ("size_ms", "every_ms", "gap_ms", "lateness_ms")
    )
    windowers = {
        "tumbling": lambda: win.TumblingWindower(length=size, align_to=ALIGN_TO),
        "hopping": lambda: win.SlidingWindower(length=size, offset=every, align_to=ALIGN_TO),
        "session": lambda: win.SessionWindower(gap=gap),
    }
    clock = win.EventClock(lambda event: datetime.fromisoformat(event["at"]), late)
    sums = win.fold_window(
        "sums", events, clock, windowers[work["kind"]](), builder=lambda: (0, 0.0), folder=_add, merger=_merge
    )
    return op.flat_map_batch("rows", sums.down, _window_rows)


def _add(sums: tuple[int, float], event: dict[str, Any]) -> tuple[int, float]:
    return sums[0] + 1, sums[1] + event["amount"]


def _merge(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], one[1] + other[1]


def _window_rows(results: Iterable[Any]) -> list[Any]:
    return [
        _row(key, {"window": window, "id": int(key), "n": n, "total": total})
        for key, (window, (n, total)) in results
    ]


def _join_table(events: Any, table: Any) -> Any:
    """Each event with the row that came last for its key: an operator of our own, for there is none."""
    joined = op.stateful_flat_map("join", op.merge("both", events, table), _look_up)
    return op.flat_map_batch("rows", joined, lambda rows: [_row(key, row) for key, row in rows])


def _look_up(row: dict[str, Any] | None, value: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    if "name" in value:
        return value, []
    found = row or {"name": None, "city": None}
    return row, [{**value, "name": found["name"], "city": found["city"]}]


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if len(sys.argv) > 2:
        cluster_main(flow_of(given), json.loads(sys.argv[3]), int(sys.argv[2]))
    else:
        addresses = [f"127.0.0.1:{_free_port()}" for _ in range(given["cores"])]
        start_workers("bench.streams.peers.bytewax", given["cores"], json.dumps(addresses))
