"""Batches that are written in steps: whole, in order, and not in the way of others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.batch import split_batches
from headrace.protocol.records import decode_batch
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import WireClient, batch_of

LARGE = b"L" * (32 * 2**20)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as kafka:
        yield kafka
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]


@pytest.fixture
def client(kafka: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(kafka.address) as client:
        client.create_topic("orders", max_message_bytes=str(2 * len(LARGE)), retention_ms="-1")
        yield client


def stored_values(folder: Path) -> list[bytes | None]:
    log = (folder / "orders-0" / f"{0:020d}.log").read_bytes()
    return [record.value for batch in split_batches(memoryview(log)) for record in decode_batch(batch)]


def test_batches_of_others_are_stored_whole_before_or_after_a_large_one(
    kafka: BrokerProcess, client: WireClient
) -> None:
    with WireClient(kafka.address) as other:
        client.send_produce("orders", batch_of(LARGE))
        answers = [other.produce("orders", batch_of(b"%d" % number)).error_code for number in range(50)]
        client.receive()
    assert set(answers) == {0}
    values = stored_values(kafka.folder)
    assert sorted(value for value in values if value != LARGE) == sorted(b"%d" % n for n in range(50))
    assert values.count(LARGE) == 1


def test_batches_of_one_connection_keep_their_order(kafka: BrokerProcess, client: WireClient) -> None:
    for value in (b"first", LARGE, b"third"):
        client.send_produce("orders", batch_of(value))
    for _ in range(3):
        client.receive()
    assert stored_values(kafka.folder) == [b"first", LARGE, b"third"]


def test_a_client_that_leaves_in_the_middle_of_its_batch_blocks_nobody(
    kafka: BrokerProcess, client: WireClient
) -> None:
    for number in range(5):
        with WireClient(kafka.address) as leaving:
            leaving.send_produce("orders", batch_of(LARGE))
        assert client.produce("orders", batch_of(b"%d" % number)).error_code == 0
    assert [value for value in stored_values(kafka.folder) if value != LARGE] == [
        b"%d" % number for number in range(5)
    ]
