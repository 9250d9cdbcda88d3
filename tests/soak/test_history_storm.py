"""A mixed load under kills of broker, driver and tasks, judged by the checker of histories."""

import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import queue
from tests.broker.processes import BrokerProcess
from tests.soak.history import History, Outcome, find_anomalies, find_copy_anomalies, find_missing
from tests.soak.history_load import (
    CALM_SECONDS,
    COPY,
    CREW,
    EVENTS,
    PARTITIONS,
    Client,
    IdempotentProducer,
    Member,
    Reader,
    Receiver,
    TransactionalProducer,
    Worker,
    read_log,
)
from tests.soak.pipeline_process import PipelineProcess
from tests.soak.summary import RecordProperty

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS: Final = 220
DRIVER_KILLS: Final = 10
TASK_KILLS: Final = 30
SPARK_SECONDS: Final = 600.0
"""How long Spark may take until it runs tasks, also on a busy machine."""
PIPELINE: Final = f"""
from headrace import App

app = App("storm")
events = app.stream("{EVENTS}", format="text")


@app.job(into=app.topic("{COPY}", partitions=2, format="raw"))
def copy():
    return events.df.selectExpr("value")
"""


def test_no_client_sees_an_anomaly_while_broker_driver_and_tasks_are_killed(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    seed = random.randrange(2**32)
    record_property("seed", seed)
    history = History()
    with BrokerProcess(tmp_path / "data") as broker:
        prepare(broker.address)
        clients = start_clients(broker.address, history, seed)
        pipeline = PipelineProcess(tmp_path, PIPELINE, HEADRACE_BROKER=broker.address)
        pipeline.start()
        try:
            killed = kill_at_random(broker, pipeline, clients, random.Random(seed))
            end(*(client for client in clients if not isinstance(client, Receiver)))
            missing = await_receivers(history, clients)
        finally:
            pipeline.kill()
            end(*clients)
        record_property("copied under kills", sum(map(len, read_log(broker.address, COPY, 2))))
        pipeline.finish()
        log = read_log(broker.address, EVENTS, PARTITIONS)
        copied = [value for values in read_log(broker.address, COPY, 2) for value in values.values()]
    anomalies = find_anomalies(history, log)
    copy_anomalies = find_copy_anomalies(log, copied)
    record_property("kills", sum(killed.values()))
    for name, count in (killed | history.counts()).items():
        record_property(name, count)
    record_property("records", sum(map(len, log)))
    record_property("anomalies", len(anomalies) + len(copy_anomalies) + sum(map(len, missing.values())))
    assert len(history.sends(Outcome.COMMITTED)) > KILLS
    assert anomalies == []
    assert copy_anomalies == {}
    assert missing == {Member: [], Worker: []}


def prepare(bootstrap: str) -> None:
    """Create the topic, and place the share group at its beginning."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic(EVENTS, PARTITIONS, 1)]).values()
    created.result(30)
    settings = {
        "share.isolation.level": "read_committed",
        "share.delivery.count.limit": "100",
        "share.record.lock.duration.ms": "1000",
    }
    assert list(queue(EVENTS, group=CREW, broker=bootstrap, idle_timeout="100 ms", settings=settings)) == []


def start_clients(bootstrap: str, history: History, seed: int) -> list[Client]:
    """Two producers of each kind, a reader, two members of a group, and two workers of a share group."""
    clients: list[Client] = [
        IdempotentProducer(1, bootstrap, history, seed),
        IdempotentProducer(2, bootstrap, history, seed),
        TransactionalProducer(3, bootstrap, history, seed),
        TransactionalProducer(4, bootstrap, history, seed),
        Reader("reader", bootstrap, history, seed),
        *(Member(f"member-{number}", bootstrap, history, seed) for number in (1, 2)),
        *(Worker(f"worker-{number}", bootstrap, history, seed) for number in (1, 2)),
    ]
    for client in clients:
        client.start()
    return clients


def kill_at_random(
    broker: BrokerProcess, pipeline: PipelineProcess, clients: list[Client], chance: random.Random
) -> dict[str, int]:
    """Kill what the plan says in a random order; how often each was killed."""
    broker_kills = KILLS - DRIVER_KILLS - TASK_KILLS
    plan = ["broker"] * broker_kills + ["driver"] * DRIVER_KILLS + ["task"] * TASK_KILLS
    chance.shuffle(plan)
    for number, victim in enumerate(plan, 1):
        print(f"{datetime.now(UTC):%H:%M:%S} kill {number}: {victim}", flush=True)  # -s shows the progress
        time.sleep(chance.uniform(0.3, 2.0))  # the victim runs for this long
        assert [fault for client in clients for fault in client.faults] == []
        pipeline.ensure_running()
        match victim:
            case "broker":
                broker.restart()
            case "driver":
                await_python_workers(pipeline)
                pipeline.kill()
                pipeline.start()
            case _:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(await_python_workers(pipeline)), signal.SIGKILL)
    return dict(Counter(f"{victim} kills" for victim in plan))


def await_python_workers(pipeline: PipelineProcess) -> list[int]:
    """The Python processes of Spark, once it has some; a pipeline that has ended is started again."""
    deadline = time.monotonic() + SPARK_SECONDS
    while not (workers := pipeline.python_workers()):
        assert time.monotonic() < deadline, f"Spark starts no Python process: {pipeline.log()}"
        time.sleep(0.2)  # a look through all processes of the machine takes time itself
        pipeline.ensure_running()
    return workers


def end(*clients: Client) -> None:
    """Stop clients, and wait until they have ended."""
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(2 * CALM_SECONDS)
        assert not client.is_alive(), f"{client.name} does not end:\n{stack_of(client)}"
    assert [fault for client in clients for fault in client.faults] == []


def stack_of(thread: threading.Thread) -> str:
    """Where a thread is now."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "it has ended"


def await_receivers(history: History, clients: list[Client]) -> dict[type[Receiver], list[int]]:
    """Wait until each group has received all committed values; those that a group does not receive."""
    missing = {}
    for kind in (Member, Worker):
        receivers = [client for client in clients if isinstance(client, kind)]
        left = set(find_missing(history, ()))
        deadline = time.monotonic() + CALM_SECONDS
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            before = len(left)
            for receiver in receivers:
                left = left - receiver.received
            if len(left) < before:
                deadline = time.monotonic() + CALM_SECONDS
        missing[kind] = sorted(left)
    return missing
