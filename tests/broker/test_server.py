"""Starting and stopping: what is refused and why, what a stop still answers, and what it leaves."""

import asyncio
import errno
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.broker import Broker
from headrace.broker.config import BrokerConfig, InvalidSetting
from headrace.broker.listeners import Listener
from headrace.broker.server import BoundListener, Server
from headrace.errors import HeadraceError
from headrace.testing import broker
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import METADATA, ConnectionEnded, WireClient, batch_of

FILE_LIMIT = 200


def run_to_its_end(folder: Path, listen: str) -> subprocess.CompletedProcess[str]:
    """A broker that is expected not to start."""
    command = [sys.executable, "-m", "headrace.broker", "--listen", listen, "--data", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "kafka.example.com"])
def test_only_loopback_is_listened_on_without_authentication(host: str) -> None:
    with pytest.raises(InvalidSetting, match=r"without authentication.*use SASL_SSL.*listen on 127\.0\.0\.1"):
        BrokerConfig(host=host)


def test_the_command_refuses_another_address_with_the_reason(tmp_path: Path) -> None:
    ended = run_to_its_end(tmp_path, "0.0.0.0:0")
    assert ended.returncode == 1
    assert "does not listen on 0.0.0.0" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_said_and_ends_with_code_1(tmp_path: Path) -> None:
    with broker() as other:
        ended = run_to_its_end(tmp_path, other.bootstrap)
    assert ended.returncode == 1
    assert other.bootstrap in ended.stderr
    assert "in use" in ended.stderr
    assert "--listen" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_in_use_is_said_with_the_process_that_holds_it(tmp_path: Path) -> None:
    with broker(data=tmp_path):
        ended = run_to_its_end(tmp_path, "127.0.0.1:0")
    assert ended.returncode == 1
    assert str(os.getpid()) in ended.stderr
    assert "--data" in ended.stderr


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ended = run_to_its_end(tmp_path / "file", "127.0.0.1:0")
    assert ended.returncode == 1
    assert str(tmp_path / "file") in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_is_free_again_after_a_start_that_failed(tmp_path: Path) -> None:
    (tmp_path / "__headrace_topics-0").write_text("where a folder should be")
    with pytest.raises(HeadraceError, match="__headrace_topics"), broker(data=tmp_path):
        pass
    (tmp_path / "__headrace_topics-0").unlink()
    with broker(data=tmp_path) as kafka, WireClient(kafka.bootstrap) as client:
        assert client.create_topic("orders").error_code is ErrorCode.none


def test_a_topic_that_cannot_be_made_on_demand_is_answered_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "orders-0").write_text("where a folder should be")
    with broker(data=tmp_path) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("cups.new")
        answer = client.ask(METADATA, 1, topics=[{"name": "orders"}, {"name": "cups_new"}])
        codes = [topic.error_code for topic in answer.topics]
        assert codes == [ErrorCode.kafka_storage_error, ErrorCode.invalid_topic_exception]


def test_a_stop_answers_long_polls_with_what_there_is(tmp_path: Path) -> None:
    with broker(data=tmp_path) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("orders")
        client.send_fetch({("orders", 0): 0}, max_wait=600_000)
        client.send(METADATA, 1, topics=[{"name": "orders"}])
        kafka.stop()
        assert client.receive().responses[0].partitions[0].high_watermark == 0
        assert client.receive().topics[0].name == "orders"
        assert client.is_ended()


def test_a_stopped_broker_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka, WireClient(kafka.address) as client:
        client.create_topic("orders")
        for number in range(50):
            client.send_produce("orders", batch_of(b"%d" % number))
        acknowledged = [client.receive() for _ in range(50)]
        assert kafka.stop() == 0
        kafka.start()
        with WireClient(kafka.address) as later:
            assert later.end_offset("orders") == len(acknowledged)


def test_connections_that_are_quiet_for_too_long_are_closed() -> None:
    with broker(idle_connection_ms=50) as kafka:
        silent, half = WireClient(kafka.bootstrap), WireClient(kafka.bootstrap)
        with silent, half:
            half.send_bytes(half.pack(METADATA, 1, topics=[{"name": "orders"}])[:-3])
            assert silent.is_ended()
            assert half.is_ended()


def test_a_client_that_waits_for_its_answer_is_not_idle() -> None:
    with broker(idle_connection_ms=200) as kafka, WireClient(kafka.bootstrap) as client:
        client.send_fetch({("__consumer_offsets", 0): 0}, max_wait=1000)
        assert client.receive().responses[0].partitions[0].error_code is ErrorCode.none


def test_connections_are_refused_before_those_that_are_served_lack_descriptors(tmp_path: Path) -> None:
    limit = ["prlimit", f"--nofile={FILE_LIMIT}:{FILE_LIMIT}"]
    with BrokerProcess(tmp_path / "data", before=limit) as kafka, WireClient(kafka.address) as client:
        crowd = [WireClient(kafka.address) for _ in range(FILE_LIMIT)]
        wait_until(lambda: "nearly all file descriptors" in kafka.errors, "the broker to refuse a connection")
        assert client.create_topic("orders").error_code is ErrorCode.none
        assert client.produce("orders", batch_of(b"tea")).error_code is ErrorCode.none
        for member in crowd:
            member.close()
        wait_until(lambda: can_ask(kafka.address), "a connection to be taken in again")


class Exhausted(socket.socket):
    """A listener of a process that has no descriptor left for a while."""

    faults = 3

    def accept(self) -> "tuple[socket.socket, tuple[str, int]]":
        if self.faults:
            self.faults -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_what_an_ended_connection_still_does_reaches_no_other(tmp_path: Path) -> None:
    """A descriptor is used again at once, for example while the refusal of a password is still delayed."""
    kafka = await Broker.start(BrokerConfig(data=tmp_path, port=0))
    assert kafka.server is not None
    ((listener, _),) = kafka.endpoints
    spare = os.dup(0)
    with WireClient(listener.address) as first:
        await asyncio.to_thread(first.ask, METADATA, 1, topics=[])
        (ended,) = kafka.server._connections
        used = [os.dup(0)]
        while used[-1] < ended._fd:
            used.append(os.dup(0))
        ended.close()
        os.close(spare)  # for the second client; the broker gets the only other one that is free below
        with WireClient(listener.address) as second:
            await asyncio.to_thread(second.ask, METADATA, 1, topics=[])
            (served,) = kafka.server._connections
            assert served._fd == ended._fd
            ended.close_when_sent()
            ended.mute(1)
            await asyncio.to_thread(second.ask, METADATA, 1, topics=[])
    for descriptor in used:
        os.close(descriptor)
    await kafka.stop()


async def test_a_connection_that_cannot_be_taken_in_is_taken_in_later(tmp_path: Path) -> None:
    kafka = await Broker.start(BrokerConfig(data=tmp_path, port=0))
    listener = Exhausted()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    address = Listener(host="127.0.0.1", port=0)
    endpoint = address.endpoint(listener.getsockname()[1])
    server = Server(kafka, [BoundListener(listener=address, socket=listener, endpoint=endpoint)])
    assert await asyncio.to_thread(can_ask, f"127.0.0.1:{listener.getsockname()[1]}")
    assert listener.faults == 0
    await server.close()
    await kafka.stop()


def can_ask(address: str) -> bool:
    """Whether a new connection gets an answer."""
    with WireClient(address) as client:
        try:
            return bool(client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics)
        except ConnectionEnded:
            return False


def test_the_broker_allows_itself_as_many_open_files_as_the_system_does(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", before=["prlimit", "--nofile=100:"]) as kafka:
        soft, hard = resource.prlimit(kafka.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
