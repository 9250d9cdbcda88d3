"""A batch of millions of rows passes through a driver with little memory."""

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.testing import broker
from tests.soak import large_batch
from tests.soak.summary import RecordProperty

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

RECORDS = 5_000
MOST_MB = 250
"""What the driver's Python process may need more than at its start."""


def test_a_batch_of_five_million_rows_needs_little_memory_in_the_driver(
    tmp_path: Path, database: str, record_property: RecordProperty
) -> None:
    with broker() as server:
        with Cluster.of(server.bootstrap) as cluster:
            create_topics(cluster, [NewTopic(name="numbers", partitions=2)])
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for n in range(RECORDS):
            producer.produce("numbers", json.dumps({"n": n}), partition=n % 2)
        assert producer.flush(60) == 0
        command = [sys.executable, "-m", large_batch.__name__, server.bootstrap, database, str(tmp_path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1500)
    needed = json.loads(done.stdout.splitlines()[-1])
    record_property("memory", needed)
    print(needed)
    rows = RECORDS * large_batch.ROWS_OF_A_RECORD
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT count(*), sum(id), max(product) FROM numbers").fetchone()
        left = connection.execute("SELECT count(*) FROM pg_class WHERE relname ~ 'headrace_st'").fetchone()
    assert found == (rows, rows * (rows - 1) // 2, "product-999999")
    assert left == (0,)
    assert needed["peak"] - needed["before"] < MOST_MB
