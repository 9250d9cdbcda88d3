"""Headrace, as its command line starts it."""

import sys
from pathlib import Path

from bench.broker.systems.kafka_ping import ping_kafka
from bench.broker.systems.system import Flush, Node, ServerNode, System, write_certificate
from bench.machine import package_versions
from bench.processes import Server, free_port

READY = "headrace broker ready on"
FLUSH = {Flush.OS: "os", Flush.TLS: "os", Flush.ALWAYS: "always"}


def _set_up(folder: Path, flush: Flush) -> Node:
    # A port that is known beforehand can be asked from the first moment on.
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-m",
        "headrace.broker",
        "--data",
        str(folder / "data"),
        "--flush",
        FLUSH[flush],
    ]
    certificate = ""
    if flush is Flush.TLS:
        certificate = str(write_certificate(folder))
        command += ["--listen", f"SSL://{address}", "--tls-certificate", certificate]
    else:
        command += ["--listen", address]
    server = Server(command, log=folder / "log", is_ready=lambda text: READY in text)
    return ServerNode(address, server, ca=certificate)


HEADRACE = System(
    name="headrace",
    title="Headrace",
    client="librdkafka",
    set_up=_set_up,
    ping=ping_kafka,
    version=lambda: package_versions("headrace").get("headrace", "unknown"),
    has_partitions=True,
    prints_ready=True,
)
