"""A real Apache Kafka on this machine, to compare with: fetched by Maven, run in KRaft mode on loopback.

    with ApacheKafka() as kafka:
        connect_to(kafka.bootstrap)

    with ApacheKafkaCluster(brokers=3) as cluster:
        cluster.nodes[1].kill()

The jars (about 45 MB) are fetched once, into `$HEADRACE_CACHE` or `~/.cache/headrace`. Each instance has a
temporary folder of its own, which goes when it is closed. The settings are those of Kafka's own
`config/server.properties` and `bin/kafka-server-start.sh`, except for what one node needs.
`python -m tools.apache_kafka` runs one until Ctrl-C, and with `--brokers 3` a cluster of three.
"""

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tools.maven import Artifact, JarsUnavailable, fetch
from tools.server import Server

VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"  # the one that Kafka 4.3 brings, so that its log can be bound to it

ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
)

LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
"""

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # A test that waits three seconds for each new group tests nothing more.
    "group.initial.rebalance.delay.ms": "0",
}

# What bin/kafka-run-class.sh gives to the server.
JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

START_SECONDS = 60
STOP_SECONDS = 30


class ApacheKafkaUnavailable(Exception):
    """Apache Kafka could not be fetched or started; the message says why and what to do."""


def fetch_jars(cache: Path | None = None) -> Path:
    """The folder of Apache Kafka's jars, fetched by Maven when it is not there yet."""
    try:
        return fetch(f"apache-kafka-{VERSION}", ARTIFACTS, cache)
    except JarsUnavailable as unavailable:
        raise ApacheKafkaUnavailable(str(unavailable)) from None


def _find_program(name: str, remedy: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ApacheKafkaUnavailable(
            f"Apache Kafka needs the program {name!r}, which is not on PATH: {remedy}."
        )
    return path


@contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Distinct free ports of loopback, held until the block ends."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        yield [held.getsockname()[1] for held in sockets]


class Controller(NamedTuple):
    """A node's place in the quorum of controllers."""

    node: int
    port: int
    directory: str

    @property
    def address(self) -> str:
        """Where the other controllers find it."""
        return f"127.0.0.1:{self.port}"


class Quorum(NamedTuple):
    """The controllers of a cluster, which every node must know before its first start."""

    cluster: str
    controllers: tuple[Controller, ...]

    @classmethod
    def of(cls, ports: Sequence[int]) -> "Quorum":
        """A new cluster with a controller on each port, numbered from 1."""
        controllers = [Controller(node, port, _new_id()) for node, port in enumerate(ports, start=1)]
        return cls(_new_id(), tuple(controllers))

    def settings(self) -> dict[str, str]:
        """What the quorum's size and addresses are in a node's server.properties."""
        replicas = str(min(3, len(self.controllers)))
        in_sync = str(min(2, len(self.controllers)))
        return {
            "controller.quorum.bootstrap.servers": ",".join(one.address for one in self.controllers),
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
        }

    def members(self) -> str:
        """The quorum as the storage tool wants to read it."""
        return ",".join(f"{one.node}@{one.address}:{one.directory}" for one in self.controllers)


def _new_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class ApacheKafka(Server):
    """One Apache Kafka node, broker and controller in one, on free ports of 127.0.0.1.

    `start`, `stop` and `kill` may follow one another: address and data stay until `close`.
    `with ApacheKafka() as kafka` starts it, and closes it at the end. It is a cluster of its own, unless
    it is given its place in the quorum of another.
    """

    def __init__(
        self,
        *,
        heap: str = "1G",
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        quorum: Quorum | None = None,
        node: int = 1,
        listeners: Mapping[str, str] | None = None,
        listener_ports: Mapping[str, int] | None = None,
        storage_options: Sequence[str] = (),
    ) -> None:
        """Prepare a node; `properties` are added to its server.properties, and win over ours.

        `listeners` are more listeners, with the security protocol of each; they listen on free ports, unless
        `listener_ports` names others. `storage_options` are arguments
        for the formatting of the storage, such as `--add-scram`.
        """
        self._java = _find_program(
            "java", "install a Java 17 or later (Debian: apt install openjdk-17-jre-headless)"
        )
        self._jars = fetch_jars()
        self._heap = heap
        self._folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._protocols = dict(listeners or {})
        self._storage_options = tuple(storage_options)
        with _free_ports(2 + len(self._protocols)) as (free_port, controller_port, *others):
            self.port = port or free_port
            self._quorum = quorum or Quorum.of([controller_port])
            ports = dict(zip(self._protocols, others, strict=True)) | dict(listener_ports or {})
            self.listeners = {name: f"127.0.0.1:{other}" for name, other in ports.items()}
            """The addresses of the other listeners."""
        self._write_settings(self._quorum.controllers[node - 1], properties or {})
        self._formatted = False

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the server was started, and neither stopped nor killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start the server, and return when it answers."""
        self.launch()
        self.await_answer()

    def launch(self) -> None:
        """Start the server, and do not wait for it: it answers when most of its quorum is there."""
        if not self._formatted:
            self._format_storage()
        with self._log.open("ab") as log:
            command = self._java_command("kafka.Kafka", str(self._settings))
            # In a session of its own: a Ctrl-C on the terminal is ours to handle, and stops it cleanly.
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def await_answer(self, brokers: int = 1) -> None:
        """Return when the server answers, and knows of that many brokers."""
        deadline = time.monotonic() + START_SECONDS
        # librdkafka's own complaints about refused connections are expected here, and would only alarm.
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        while self._count_brokers(admin) < brokers:
            self._check_still_starting(deadline)

    def stop(self) -> None:
        """Stop the server as an operator would (SIGTERM), and return when it has gone."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def kill(self) -> None:
        """End the server at once, as a crash would (SIGKILL)."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def close(self) -> None:
        """Stop the server if it runs, and remove its folder."""
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server wrote to its log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ApacheKafkaUnavailable("Apache Kafka is not running: call start() first.")
        return self._process

    def _write_settings(self, controller: Controller, properties: Mapping[str, str]) -> None:
        addresses = {"PLAINTEXT": self.bootstrap, "CONTROLLER": controller.address, **self.listeners}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._protocols}
        listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
        own = {
            "node.id": str(controller.node),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{name}:{way}" for name, way in protocols.items()),
            "log.dirs": str(self._folder / "data"),
        }
        settings = {**SETTINGS, **self._quorum.settings(), **own, **properties}
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self._folder / "log4j2.properties").write_text(LOGGING)

    def _format_storage(self) -> None:
        command = self._java_command(
            "kafka.tools.StorageTool",
            "format",
            f"--initial-controllers={self._quorum.members()}",
            f"--cluster-id={self._quorum.cluster}",
            "-c",
            str(self._settings),
            *self._storage_options,
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ApacheKafkaUnavailable(
                f"Apache Kafka could not format its storage (exit {done.returncode}): "
                f"check the extra properties, and that Java is 17 or later.\n{done.stdout}{done.stderr}"
            )
        self._formatted = True

    def _java_command(self, main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        heap = (f"-Xmx{self._heap}", f"-Xms{self._heap}")
        return [self._java, *heap, *JVM_OPTIONS, logging, "-cp", f"{self._jars}/*", main, *arguments]

    def _count_brokers(self, admin: AdminClient) -> int:
        try:
            return len(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return 0

    def _check_still_starting(self, deadline: float) -> None:
        ended = self._running().poll()
        if ended is None and time.monotonic() < deadline:
            return
        reason = f"ended with {ended}" if ended is not None else f"did not answer within {START_SECONDS} s"
        raise ApacheKafkaUnavailable(
            f"Apache Kafka {reason} while starting; the end of its log says why:\n{self.log_tail()}"
        )


class ApacheKafkaCluster(Server):
    """Several Apache Kafka nodes in one cluster: topics are replicated to up to three of them.

    A topic without a replication factor of its own gets three replicas, and takes writes while two are there:
    a single node may be killed. `nodes` are those of the cluster, each with `kill` and `start`.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        heap: str = "320M",
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """Prepare the nodes; `properties` are added to the server.properties of each.

        The first node listens on `port`, if one is given; all others on free ports.
        """
        with _free_ports(2 * brokers) as ports:
            ports[0] = port or ports[0]
            quorum = Quorum.of(ports[brokers:])
            self.nodes = [
                ApacheKafka(heap=heap, properties=properties, port=port, quorum=quorum, node=node)
                for node, port in enumerate(ports[:brokers], start=1)
            ]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        """Start all nodes, and return when each of them knows all."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_answer(len(self.nodes))

    def close(self) -> None:
        """End all nodes that run, and remove their folders."""
        for node in self.nodes:
            # What they hold is about to go: a clean stop would wait for a quorum that is going as well.
            if node.is_running:
                node.kill()
            node.close()


def main() -> None:
    """Run one Apache Kafka, or a cluster of several, until Ctrl-C, and print its address."""
    parser = argparse.ArgumentParser(prog="python -m tools.apache_kafka", description=main.__doc__)
    parser.add_argument(
        "--heap", default="1G", help="size of each Java heap (default: 1G, as Kafka's own script)"
    )
    parser.add_argument("--brokers", type=int, default=1, help="how many nodes (default: 1)")
    parser.add_argument("--port", type=int, help="where the first of them listens (default: a free one)")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a property of each server"
    )
    options = parser.parse_args()
    properties = dict(setting.split("=", 1) for setting in options.set)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ApacheKafkaCluster(
            options.brokers, heap=options.heap, properties=properties, port=options.port
        ) as kafka:
            sys.stdout.write(f"apache kafka ready on {kafka.bootstrap}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)
    except ApacheKafkaUnavailable as unavailable:
        sys.exit(str(unavailable))


if __name__ == "__main__":
    main()
