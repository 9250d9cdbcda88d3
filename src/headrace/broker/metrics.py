"""The broker's metrics, under the names of Kafka's JMX exporter and of kafka_exporter, and its health.

Everything here is read when the page is requested: the broker counts with plain integers where it works. The
samples are taken on the event loop in time slices, because nothing else may read its state, and the page is
written by the thread of the HTTP server.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import TimeoutError as LoopBlocked
from typing import TYPE_CHECKING, Final

from headrace.broker.client_telemetry import METRICS as CLIENT_METRICS
from headrace.broker.request_metrics import api_name, error_name
from headrace.metrics.families import Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.broker.broker import Broker
    from headrace.broker.topics import Partition, Topic
    from headrace.metrics.families import Scrape

LOOP_TIMEOUT_S: Final = 10.0
"""After this time without a turn of its event loop, the broker is not alive."""

_TOPIC: Final = ("topic",)
_PARTITION: Final = ("topic", "partition")

BYTES_IN = Metric(
    name="kafka_server_brokertopicmetrics_bytesin_total",
    kind=Kind.COUNTER,
    doc="Bytes of record batches appended by producers.",
    labels=_TOPIC,
)
MESSAGES_IN = Metric(
    name="kafka_server_brokertopicmetrics_messagesin_total",
    kind=Kind.COUNTER,
    doc="Records appended by producers.",
    labels=_TOPIC,
)
BYTES_OUT = Metric(
    name="kafka_server_brokertopicmetrics_bytesout_total",
    kind=Kind.COUNTER,
    doc="Bytes of record batches sent to consumers and share consumers.",
    labels=_TOPIC,
)
LOG_SIZE = Metric(
    name="kafka_log_log_size", kind=Kind.GAUGE, doc="Size of the log in bytes.", labels=_PARTITION
)
LOG_START = Metric(
    name="kafka_log_log_logstartoffset", kind=Kind.GAUGE, doc="First offset of the log.", labels=_PARTITION
)
LOG_END = Metric(
    name="kafka_log_log_logendoffset", kind=Kind.GAUGE, doc="Next offset of the log.", labels=_PARTITION
)
REQUEST_TIME = Metric(
    name="kafka_network_requestmetrics_totaltime_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time from the arrival of a request to its complete response, with what it waited for.",
    labels=("request",),
)
REQUEST_ERRORS = Metric(
    name="kafka_network_requestmetrics_errors_total",
    kind=Kind.COUNTER,
    doc="Errors in responses, by API and Kafka's error code.",
    labels=("request", "error"),
)
CONNECTIONS = Metric(
    name="kafka_server_socketservermetrics_connections",
    kind=Kind.GAUGE,
    doc="Open connections.",
)
CONNECTIONS_CREATED = Metric(
    name="kafka_server_socketservermetrics_connection_creation_total",
    kind=Kind.COUNTER,
    doc="Connections accepted since the start.",
)
CONNECTIONS_REFUSED = Metric(
    name="kafka_server_socketservermetrics_connection_refused_total",
    kind=Kind.COUNTER,
    doc="Connections closed because a limit was reached.",
)
FAILED_AUTHENTICATION = Metric(
    name="kafka_server_socketservermetrics_failed_authentication_total",
    kind=Kind.COUNTER,
    doc="Connections whose TLS handshake or SASL authentication failed or was late.",
)
REQUEST_MEMORY = Metric(
    name="kafka_server_socketservermetrics_memory_pool_used_bytes",
    kind=Kind.GAUGE,
    doc="Memory of requests being read and responses waiting to be sent.",
)
TOPICS = Metric(
    name="kafka_controller_kafkacontroller_globaltopiccount",
    kind=Kind.GAUGE,
    doc="Topics, with internal ones.",
)
PARTITIONS = Metric(
    name="kafka_controller_kafkacontroller_globalpartitioncount",
    kind=Kind.GAUGE,
    doc="Partitions of all topics.",
)
GROUP_OFFSET = Metric(
    name="kafka_consumergroup_current_offset",
    kind=Kind.GAUGE,
    doc="Committed offset of a consumer group.",
    labels=("consumergroup", *_PARTITION),
)
GROUP_LAG = Metric(
    name="kafka_consumergroup_lag",
    kind=Kind.GAUGE,
    doc="Records after the committed offset of a consumer group.",
    labels=("consumergroup", *_PARTITION),
)
GROUP_MEMBERS = Metric(
    name="kafka_consumergroup_members",
    kind=Kind.GAUGE,
    doc="Members of a consumer group.",
    labels=("consumergroup", "state"),
)
SHARE_LAG = Metric(
    name="kafka_sharegroup_lag",
    kind=Kind.GAUGE,
    doc="Records that a share group has not acknowledged.",
    labels=("sharegroup", *_PARTITION),
)
SHARE_MEMBERS = Metric(
    name="kafka_sharegroup_members",
    kind=Kind.GAUGE,
    doc="Members of a share group.",
    labels=("sharegroup",),
)
OPEN_TRANSACTIONS = Metric(
    name="kafka_coordinator_transaction_open_transactions",
    kind=Kind.GAUGE,
    doc="Transactions that are neither committed nor aborted.",
)
OLDEST_TRANSACTION = Metric(
    name="kafka_coordinator_transaction_oldest_open_age_seconds",
    kind=Kind.GAUGE,
    doc="Age of the oldest open transaction; 0 without one.",
)
COMPACTIONS = Metric(
    name="kafka_log_logcleaner_runs_total", kind=Kind.COUNTER, doc="Compactions of a partition."
)
COMPACTED_BYTES = Metric(
    name="kafka_log_logcleaner_read_bytes_total",
    kind=Kind.COUNTER,
    doc="Bytes that compaction has read.",
)
RECLAIMED_BYTES = Metric(
    name="kafka_log_logcleaner_reclaimed_bytes_total",
    kind=Kind.COUNTER,
    doc="Bytes that compaction has removed.",
)
FLUSH_TIME = Metric(
    name="kafka_log_logflushstats_flush_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time of a sync to disk, which several appends share.",
)
DELAYED_BATCHES = Metric(
    name="headrace_overflow_delayed_batches",
    kind=Kind.GAUGE,
    doc="Batches that wait for room in their topic (`headrace.overflow=block`).",
    labels=_TOPIC,
)
DELAYED = Metric(
    name="headrace_overflow_delayed_batches_total",
    kind=Kind.COUNTER,
    doc="Batches that had to wait for room in their topic.",
)
TIMED_OUT = Metric(
    name="headrace_overflow_timed_out_records_total",
    kind=Kind.COUNTER,
    doc="Records that were not stored because there was no room in time.",
    labels=_TOPIC,
)
REFUSED = Metric(
    name="headrace_overflow_refused_records_total",
    kind=Kind.COUNTER,
    doc="Records that a full topic refused (`headrace.overflow=drop-newest`).",
    labels=_TOPIC,
)
DROPPED = Metric(
    name="headrace_overflow_dropped_records_total",
    kind=Kind.COUNTER,
    doc="Records that were deleted before every group had read them (`headrace.overflow=drop-oldest`).",
    labels=_TOPIC,
)

METRICS: Final = (
    *(value for value in list(globals().values()) if isinstance(value, Metric)),
    *CLIENT_METRICS,
)
"""Every metric of the broker, in the order of the documentation."""


class BrokerMetricsSource:
    """What the HTTP server asks; its threads hand each question to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.broker: Broker | None = None
        """None while the broker recovers its logs, which takes the event loop."""

    def scrape(self, scrape: Scrape) -> None:
        """Add all samples; waits for the event loop."""
        if self.broker is not None:
            taken = asyncio.run_coroutine_threadsafe(take_samples(self.broker, scrape), self._loop)
            taken.result(LOOP_TIMEOUT_S)

    def faults(self) -> list[str]:
        """Why the broker should be restarted."""
        if self.broker is None:
            return []
        if self.broker.failed.done():
            return ["the disk failed"]
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(LOOP_TIMEOUT_S)
        except LoopBlocked:
            return [f"the event loop has not turned for {LOOP_TIMEOUT_S:g} s"]
        return []

    def pending(self) -> list[str]:
        """Why the broker is not ready."""
        if self.broker is None:
            return ["the broker is recovering its logs"]
        return ["the broker is stopping"] if self.broker.is_stopping else []


async def take_samples(broker: Broker, scrape: Scrape) -> None:
    """Add the samples of a broker, in time slices."""
    scrape.announce(*METRICS)
    time_slice = broker.scheduler.time_slice()
    try:
        await time_slice.run(_steps(broker, scrape))
    finally:
        time_slice.release()


def _steps(broker: Broker, scrape: Scrape) -> Generator[None, None, None]:
    _add_requests(broker, scrape)
    _add_server(broker, scrape)
    _add_storage(broker, scrape)
    yield from _transaction_steps(broker, scrape)
    for topic in broker.topics:
        yield from _topic_steps(topic, scrape)
    yield from _group_steps(broker, scrape)
    yield from _share_group_steps(broker, scrape)
    if broker.client_telemetry is not None:
        yield from broker.client_telemetry.samples(scrape)


def _add_requests(broker: Broker, scrape: Scrape) -> None:
    for api_key, latency in enumerate(broker.requests.latencies):
        if latency.count:
            scrape.add(REQUEST_TIME, latency, api_name(api_key))
    for (api_key, code), count in broker.requests.errors.items():
        scrape.add(REQUEST_ERRORS, count, api_name(api_key), error_name(code))


def _add_server(broker: Broker, scrape: Scrape) -> None:
    server = broker.server
    if server is None:
        return
    scrape.add(CONNECTIONS, len(server))
    scrape.add(CONNECTIONS_CREATED, server.accepted)
    scrape.add(CONNECTIONS_REFUSED, server.refused)
    scrape.add(FAILED_AUTHENTICATION, server.failed_authentications)
    scrape.add(REQUEST_MEMORY, server.memory.used_bytes)


def _add_storage(broker: Broker, scrape: Scrape) -> None:
    compactions = broker.maintenance.compactions
    scrape.add(COMPACTIONS, compactions.runs)
    scrape.add(COMPACTED_BYTES, compactions.read_bytes)
    scrape.add(RECLAIMED_BYTES, compactions.reclaimed_bytes)
    scrape.add(FLUSH_TIME, broker.flusher.latency)
    scrape.add(DELAYED, broker.overflow.delayed_batches)
    topics = list(broker.topics)
    scrape.add(TOPICS, len(topics))
    scrape.add(PARTITIONS, sum(len(topic.partitions) for topic in topics))


def _transaction_steps(broker: Broker, scrape: Scrape) -> Generator[None, None, None]:
    started = []
    for transaction in broker.transactions.list_all():
        if transaction.is_active:
            started.append(transaction.started_ms)
        yield
    age_ms = max(broker.clock.now_ms() - min(started), 0) if started else 0
    scrape.add(OPEN_TRANSACTIONS, len(started))
    scrape.add(OLDEST_TRANSACTION, age_ms / 1000)


def _topic_steps(topic: Topic, scrape: Scrape) -> Generator[None, None, None]:
    received = records = sent = 0
    for partition in topic.partitions:
        log = partition.log
        received += log.received_bytes
        records += log.received_records
        sent += log.sent_bytes
        where = (topic.name, partition.index)
        scrape.add(LOG_SIZE, log.size, *where)
        scrape.add(LOG_START, log.start_offset, *where)
        scrape.add(LOG_END, log.end_offset, *where)
        yield
    scrape.add(BYTES_IN, received, topic.name)
    scrape.add(MESSAGES_IN, records, topic.name)
    scrape.add(BYTES_OUT, sent, topic.name)
    _add_overflow(topic, scrape)


def _add_overflow(topic: Topic, scrape: Scrape) -> None:
    limiters = [each.limiter for each in topic.partitions if each.limiter is not None]
    if limiters:
        scrape.add(DELAYED_BATCHES, sum(len(each.delayed) for each in limiters), topic.name)
        scrape.add(TIMED_OUT, sum(each.counts.timed_out_records for each in limiters), topic.name)
        scrape.add(REFUSED, sum(each.counts.refused_records for each in limiters), topic.name)
        scrape.add(DROPPED, sum(each.counts.dropped_records for each in limiters), topic.name)


def _group_steps(broker: Broker, scrape: Scrape) -> Generator[None, None, None]:
    for group in list(broker.groups):
        scrape.add(GROUP_MEMBERS, len(group.members), group.id, group.state.value)
        yield
    for group_id in broker.offsets.group_ids():
        for (topic, index), committed in broker.offsets.of_group(group_id).items():
            scrape.add(GROUP_OFFSET, committed.offset, group_id, topic, index)
            partition = _partition(broker, topic, index)
            if partition is not None:
                lag = max(partition.log.high_watermark - committed.offset, 0)
                scrape.add(GROUP_LAG, lag, group_id, topic, index)
            yield
        yield


def _share_group_steps(broker: Broker, scrape: Scrape) -> Generator[None, None, None]:
    for group in broker.shares.groups():
        scrape.add(SHARE_MEMBERS, len(group.members), group.id)
        yield
    for share_partition in broker.shares.all_partitions():
        if not share_partition.is_closed:
            partition = share_partition.partition
            where = (share_partition.key.group, partition.topic, partition.index)
            scrape.add(SHARE_LAG, share_partition.lag, *where)
        yield


def _partition(broker: Broker, topic: str, index: int) -> Partition | None:
    found = broker.topics.get(topic)
    return None if found is None else found.partition(index)
