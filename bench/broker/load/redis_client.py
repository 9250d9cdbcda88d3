"""Load on Redis Streams by redis-py: XADD in pipelines, XREAD in counts of a thousand."""

import random
import threading

import redis

from bench.broker.load.job import Job, Outcome, Window
from bench.broker.load.latencies import DRAIN_SECONDS, Arrivals, pace, sleep_until, stamped

BATCH = 1_000
BLOCK_MS = 1_000


def produce(job: Job) -> Outcome:
    """XADD in pipelines of a thousand."""
    return _add(job, batch=BATCH)


def requests(job: Job) -> Outcome:
    """XADD in pipelines as long as the requests in flight."""
    return _add(job, batch=job.in_flight)


def consume(job: Job) -> Outcome:
    """XREAD from the start of the stream, repeatedly."""
    connection = _connect(job)
    last, records = b"0", 0
    with Window(job) as window:
        while window.is_open:
            ((_, entries),) = connection.xread({job.topic: last}, count=BATCH)
            records += len(entries)
            last = entries[-1][0] if records % job.records else b"0"
    _remove(connection, job)
    return window.outcome(records)


def latency(job: Job) -> Outcome:
    """XADD in one thread, a blocking XREAD in another."""
    connection = _connect(job)
    arrivals = Arrivals(job)
    reader = threading.Thread(target=_take_arrivals, args=(job, arrivals), daemon=True)
    reader.start()
    with Window(job) as window:
        for due in pace(job):
            sleep_until(due)
            connection.xadd(job.topic, {"v": stamped(job.record_bytes)})
        arrivals.complete.wait(DRAIN_SECONDS)
    summary = arrivals.summary()
    reader.join()
    _remove(connection, job)
    return window.outcome(int(job.seconds * job.rate), latencies_ms=summary)


def _add(job: Job, *, batch: int) -> Outcome:
    connection = _connect(job)
    fields = {"v": random.randbytes(job.record_bytes)}
    records = 0
    with Window(job) as window:
        while window.is_open:
            pipeline = connection.pipeline(transaction=False)
            for _ in range(batch):
                pipeline.xadd(job.topic, fields)
            records += len(pipeline.execute())
    _remove(connection, job)
    return window.outcome(records)


def _take_arrivals(job: Job, arrivals: Arrivals) -> None:
    connection = _connect(job)
    last = b"0"
    while not arrivals.complete.is_set():
        answer = connection.xread({job.topic: last}, block=BLOCK_MS)
        for entry, fields in answer[0][1] if answer else ():
            arrivals.add(fields[b"v"])
            last = entry


def _connect(job: Job) -> redis.Redis:
    host, port = job.address.rsplit(":", 1)
    connection = redis.Redis(host=host, port=int(port), protocol=2)
    connection.ping()
    return connection


def _remove(connection: redis.Redis, job: Job) -> None:
    if not job.keep:
        connection.delete(job.topic)
