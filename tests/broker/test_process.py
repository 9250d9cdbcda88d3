"""A broker that is attached to a program: it exits with the program."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

from confluent_kafka.admin import AdminClient

from headrace.broker.process import BrokerProcess
from tests.broker.processes import wait_until

PROGRAM = """
import sys
from pathlib import Path
from headrace.broker.process import BrokerProcess

with BrokerProcess(Path(sys.argv[1]), attached=True) as kafka:
    print(kafka.bootstrap, flush=True)
    sys.stdin.read()
"""


def is_there(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def test_a_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    kafka = BrokerProcess(tmp_path, attached=True)
    thread = threading.Thread(target=kafka.start)
    thread.start()
    thread.join()
    try:
        assert AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=100).brokers
        assert kafka.is_running
    finally:
        assert kafka.stop() == 0


def test_a_broker_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        assert is_there(address)
        program.kill()
    wait_until(lambda: not is_there(address), "the broker to end")
