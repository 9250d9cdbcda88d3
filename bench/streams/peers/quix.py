"""The works in Quix Streams, in a process for each core, at least once."""

import json
import sys
import tempfile
from datetime import datetime, timedelta
from typing import Any

from quixstreams import Application
from quixstreams.dataframe import StreamingDataFrame
from quixstreams.dataframe.windows import Count, Sum

from bench.streams.peers.workers import start_workers

CONSUMER = {"fetch.queue.backoff.ms": 1}


def main() -> None:
    """Run the application until the process is stopped."""
    task = json.loads(sys.argv[1])
    if len(sys.argv) == 2:
        start_workers("bench.streams.peers.quix", task["cores"])
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as state:
        app = Application(
            broker_address=task["bootstrap"],
            consumer_group=task["output"],
            auto_offset_reset="earliest",
            consumer_extra_config=CONSUMER,
            state_dir=state,
            loglevel="WARNING",
        )
        rows = _rows(app, task)
        rows.to_topic(app.topic(task["output"], value_serializer="json", key_serializer="bytes"))
        app.run()


def _rows(app: Application, task: dict[str, Any]) -> StreamingDataFrame:
    kind = task["work"]["kind"]
    events = _read(app, task, "events", is_timed=True)
    if kind == "table":
        return events.join_asof(_read(app, task, "table"), how="left", on_merge=_merge)
    if kind == "streams":
        within = timedelta(milliseconds=task["work"]["within_ms"])
        payments = _read(app, task, "payments", is_timed=True)
        return events.join_interval(
            payments, on_merge=_merge, grace_ms=within, backward_ms=within, forward_ms=within
        )
    return _windows(events, task["work"])


def _read(app: Application, task: dict[str, Any], role: str, *, is_timed: bool = False) -> StreamingDataFrame:
    def time_of(value: dict[str, Any], *_: object) -> int:
        return int(datetime.fromisoformat(value["at"]).timestamp() * 1000)

    # Time is read from the JSON, as by all others, although records carry it too.
    extractor = time_of if is_timed else None
    topic = app.topic(
        task[role], value_deserializer="json", key_deserializer="bytes", timestamp_extractor=extractor
    )
    return app.dataframe(topic)


def _merge(left: dict[str, Any], right: dict[str, Any] | None) -> dict[str, Any]:
    return {**(right or {"name": None}), **left}


def _windows(events: StreamingDataFrame, work: dict[str, Any]) -> StreamingDataFrame:
    size, every, gap, late = (work[name] for name in ("size_ms", "every_ms", "gap_ms", "lateness_ms"))
    windows = {
        "tumbling": lambda: events.tumbling_window(size, grace_ms=late),
        "hopping": lambda: events.hopping_window(size, every, grace_ms=late),
        # Both ends belong to it: (t - 60 s, t] is a millisecond shorter.
        "sliding": lambda: events.sliding_window(size - 1, grace_ms=late),
        "session": lambda: events.session_window(gap, grace_ms=late),
    }
    sums = windows[work["kind"]]().agg(n=Count(), total=Sum("amount"))
    return sums.current() if work["kind"] == "sliding" else sums.final()


if __name__ == "__main__":
    main()
