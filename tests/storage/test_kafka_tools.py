"""Apache Kafka's own DumpLogSegments reads what the log wrote, and finds nothing wrong with it."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.protocol.compression import CODECS
from headrace.testing import BrokerProcess
from tests.storage.batches import NOW, Writer, batch, open_log, read_records
from tools.apache_kafka import VERSION, fetch_jars
from tools.maven import Artifact, fetch

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.partition import PartitionLog

pytestmark = pytest.mark.cluster

DUMP = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile(r"mismatch|out of order|non-consecutive|not found|isvalid: false", re.IGNORECASE)
# The tool says this of every segment but the one at offset 0, because it counts from -1.
FIRST_OFFSET = re.compile(r"^Non-consecutive offsets in .*\n +-1 is followed by \d+\n", re.MULTILINE)
RECORD = re.compile(r"^\| offset: (\d+) CreateTime: (\d+) ", re.MULTILINE)


@pytest.fixture(scope="module")
def classpath() -> str:
    """Kafka's jars, and the one with its tools, fetched by Maven as they are."""
    tools = Artifact("org.apache.kafka", "kafka-tools", VERSION, alone=True)
    return f"{fetch_jars()}/*:{fetch(f'kafka-tools-{VERSION}', [tools])}/*"


def dump(classpath: str, *paths: Path, decoder: str = "--print-data-log") -> str:
    """What the tool says of the files; it must not complain."""
    names = ",".join(str(path) for path in paths)
    command = ["java", "-cp", classpath, DUMP, "--deep-iteration", decoder, "--files", names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    said = FIRST_OFFSET.sub("", done.stdout + done.stderr)
    assert not COMPLAINTS.search(said), said
    return done.stdout


@pytest.fixture
def log(tmp_path) -> PartitionLog:
    """Two closed segments with every codec, times out of order, and an aborted transaction."""
    log = open_log(tmp_path, segment_bytes=4096, index_interval_bytes=300)
    for number in range(50):
        times = (NOW + number * 37 % 100, NOW + number * 53 % 90)
        log.append(batch(b"." * 50, b"." * 50, time_ms=times, codec=number % len(CODECS)), NOW)
    log.append(batch(b"void", writer=Writer(9, transactional=True)), NOW)
    log.append_marker(9, 0, committed=False, now_ms=NOW)
    log.close()
    assert len(log.segments) > 1
    return log


def test_kafka_reads_the_same_records_from_the_log_files(log, classpath):
    paths = sorted(log.directory.glob("*.log"))
    found = [(int(offset), int(time)) for offset, time in RECORD.findall(dump(classpath, *paths))]
    marker = log.end_offset - 1
    assert [each for each in found if each[0] != marker] == [
        (record.offset, record.timestamp) for record in read_records(log)
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_finds_every_entry_of_the_indexes_true(log, classpath, suffix):
    paths = sorted(log.directory.glob(f"*{suffix}"))
    text = dump(classpath, *paths)
    entries = sum(
        len(segment.offset_index) if suffix == ".index" else len(segment.time_index)
        for segment in log.segments
    )
    assert len(re.findall(r"^(offset|timestamp): ", text, re.MULTILINE)) == entries > 3


def test_kafka_reads_the_aborted_transactions(log, classpath):
    text = dump(classpath, *log.directory.glob("*.txnindex"))
    (entry,) = log.aborted.between(0, log.end_offset)
    assert f"producerId: 9 firstOffset: {entry.first_offset} lastOffset: {entry.last_offset}" in text


KEY_AND_VALUE = re.compile(r"^\| .* key: (\{.*\}) payload: (\{.*\})$", re.MULTILINE)


def decoded(classpath: str, folder: Path, decoder: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The records of an internal topic, as Kafka reads them."""
    text = dump(classpath, *sorted(folder.glob("*.log")), decoder=decoder)
    return [
        (json.loads(key)["data"], json.loads(value)["data"]) for key, value in KEY_AND_VALUE.findall(text)
    ]


def test_kafka_reads_the_transaction_log_and_the_committed_offsets(tmp_path, classpath):
    with BrokerProcess(tmp_path / "data") as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "shop"})
        producer.init_transactions(100)
        producer.begin_transaction()
        producer.produce("orders", b"tea")
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "billing"})
        places = [TopicPartition("orders", 0, 7)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(100)
        consumer.close()
    transactions = decoded(
        classpath, tmp_path / "data" / "__transaction_state-0", "--transaction-log-decoder"
    )
    assert {key["transactionalId"] for key, _ in transactions} == {"shop"}
    assert [value["transactionStatus"] for _, value in transactions][-2:] == [2, 4]
    touched = {part["topic"] for _, value in transactions for part in value["transactionPartitions"] or ()}
    assert touched == {"orders", "__consumer_offsets"}
    offsets = decoded(classpath, tmp_path / "data" / "__consumer_offsets-0", "--offsets-decoder")
    ((key, value),) = [(key, value) for key, value in offsets if "topic" in key]
    assert (key["group"], key["topic"], key["partition"], value["offset"]) == ("billing", "orders", 0, 7)


def test_the_tool_would_have_complained(log, classpath):
    path = log.segments[0].path.with_suffix(".timeindex")
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError, match=r"(?i)mismatch"):
        dump(classpath, path)
