"""Backups of a broker under load and of jobs that run: after a restore, jobs continue with exact results."""

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.backup.creation import Sources, create_backup
from headrace.backup.restoration import Targets, restore_backup
from headrace.streams.batch_barrier import BatchBarrier, BatchTakesTooLong
from tests.broker.processes import BrokerProcess, wait_until
from tests.streams.workshop import Workshop

PRODUCTS = 7


def shop() -> App:
    """A job that copies every order, and one with state: how often each product was ordered."""
    app = App("shop")
    orders = app.stream("orders", "n long, product string", partitions=3)

    @app.job(into=app.topic("copies", key="n"))
    def copies() -> DataFrame:
        return orders.df.select("n")

    @app.job(into=app.view("totals", key="product"))
    def totals() -> DataFrame:
        return orders.df.groupBy("product").agg(F.count("n").alias("orders"))

    return app


class Orders:
    """Writes orders without end, each with a number of its own."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self.acknowledged = 0

    @contextmanager
    def written(self) -> Iterator[None]:
        """A block during which orders are written."""
        stop = threading.Event()
        thread = threading.Thread(target=self._write, args=[stop])
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            assert self._producer.flush(100) == 0

    def _write(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            for _ in range(5):
                value = {"n": number, "product": f"p{number % PRODUCTS}"}
                self._producer.produce("orders", json.dumps(value).encode(), on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.01)

    def _delivered(self, error: object, _: object) -> None:
        assert error is None
        self.acknowledged += 1


def check(workshop: Workshop) -> int:
    """Compare the results of both jobs with the log that they were computed from; returns its length."""
    orders = [json.loads(value) for value in workshop.read("orders")]
    copied = sorted(json.loads(value)["n"] for value in workshop.read("copies"))
    assert copied == sorted(order["n"] for order in orders)
    totals = {row["product"]: row["orders"] for row in map(json.loads, workshop.read("totals"))}
    assert totals == Counter(order["product"] for order in orders)
    return len(orders)


@pytest.mark.timeout(600)
def test_jobs_continue_exactly_once_from_a_backup_that_was_made_under_load(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, target = tmp_path / "old", tmp_path / "backups"
    with BrokerProcess(old / "data") as broker:
        workshop = Workshop(broker.bootstrap, old / "state")
        workshop.create("orders")
        orders = Orders(broker.bootstrap)
        with workshop.running(shop()), orders.written():
            wait_until(lambda: len(workshop.read("totals")) > 0, "the first results", 250)
            acknowledged = orders.acknowledged
            sources = Sources(data=old / "data", state=old / "state")
            create_backup(target, sources)
            second = create_backup(target, sources)
            after = orders.acknowledged
    assert second.jobs == ("shop.copies", "shop.totals")
    shutil.rmtree(old)

    new = tmp_path / "new"
    restore_backup(target, Targets(data=new / "data", state=new / "state"))
    with BrokerProcess(new / "data") as broker:
        workshop = Workshop(broker.bootstrap, new / "state")
        assert workshop.run_once(shop()) == 0, workshop.recorder.said
        restored = check(workshop)
        assert acknowledged <= restored, "what was acknowledged before the backup is in it"
        assert restored < after + 100_000
        workshop.write("orders", *({"n": -n, "product": "p0"} for n in range(1, 50)))
        assert workshop.run_once(shop()) == 0, workshop.recorder.said
        assert check(workshop) == restored + 49


def test_a_job_is_paused_between_two_batches(tmp_path: Path) -> None:
    barrier = BatchBarrier(tmp_path / "job")
    ran = threading.Event()

    def batch() -> None:
        with barrier.batch():
            ran.set()

    with barrier.paused(timeout_s=10):
        thread = threading.Thread(target=batch)
        thread.start()
        assert not ran.is_set()
    thread.join(100)
    assert ran.is_set()


def test_a_batch_that_does_not_end_fails_the_backup_and_not_the_job(tmp_path: Path) -> None:
    barrier = BatchBarrier(tmp_path / "shop" / "job")
    with (
        barrier.batch(),
        pytest.raises(BatchTakesTooLong, match=r"shop\.job did not end within 0 s"),
        barrier.paused(timeout_s=0),
    ):
        pass
    with barrier.batch(), barrier.batch():
        pass
