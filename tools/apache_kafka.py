"""A real Apache Kafka on this machine, to compare with: fetched by Maven, run in KRaft mode on loopback.

    with ApacheKafka() as kafka:
        connect_to(kafka.bootstrap)

The jars (about 45 MB) are fetched once, into `$HEADRACE_CACHE` or `~/.cache/headrace`. Each instance has a
temporary folder of its own, which goes when it is closed. The settings are those of Kafka's own
`config/server.properties` and `bin/kafka-server-start.sh`, except for what one node needs.
`python -m tools.apache_kafka` runs one until Ctrl-C.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"  # the one that Kafka 4.3 brings, so that its log can be bound to it

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>apache-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""

LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
"""

SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node holds one replica.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
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


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that keeps the jars from one run to the next."""
    return Path(environment.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")


def fetch_jars(cache: Path | None = None) -> Path:
    """The folder of Apache Kafka's jars, fetched by Maven when it is not there yet.

    It appears whole or not at all: Maven fills a folder beside it, which is then renamed.
    """
    target = (cache or cache_folder()) / f"apache-kafka-{VERSION}"
    if target.is_dir():
        return target
    maven = _find_program("mvn", "install Maven (Debian: apt install maven)")
    target.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"Fetching Apache Kafka {VERSION} by Maven into {target}\n")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as folder:
        jars = Path(folder, "jars")
        _run_maven(maven, Path(folder), jars)
        try:
            jars.rename(target)
        except OSError:
            if not target.is_dir():  # somebody else's fetch may have been quicker, and is as good
                raise
    return target


def _run_maven(maven: str, folder: Path, jars: Path) -> None:
    pom = folder / "pom.xml"
    pom.write_text(POM.format(kafka=VERSION, log4j=LOG4J_VERSION))
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not any(jars.glob("kafka_2.13-*.jar")):
        raise ApacheKafkaUnavailable(
            f"Maven could not fetch Apache Kafka {VERSION} (exit {done.returncode}): "
            f"look at its answer below, and at the repository in ~/.m2/settings.xml.\n"
            f"{done.stdout}{done.stderr}"
        )


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


class ApacheKafka:
    """One Apache Kafka node, broker and controller in one, on free ports of 127.0.0.1.

    `start`, `stop` and `kill` may follow one another: address and data stay until `close`.
    `with ApacheKafka() as kafka` starts it, and closes it at the end.
    """

    def __init__(self, *, heap: str = "1G", properties: Mapping[str, str] | None = None) -> None:
        """Prepare a node; `properties` are added to its server.properties, and win over ours."""
        self._java = _find_program(
            "java", "install a Java 17 or later (Debian: apt install openjdk-17-jre-headless)"
        )
        self._jars = fetch_jars()
        self._heap = heap
        self._folder = Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        with _free_ports(2) as (self.port, controller_port):
            self._write_settings(controller_port, properties or {})
        self._formatted = False

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    def start(self) -> None:
        """Start the server, and return when it answers."""
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
        self._await_answer(time.monotonic() + START_SECONDS)

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

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _write_settings(self, controller_port: int, properties: Mapping[str, str]) -> None:
        own = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "log.dirs": str(self._folder / "data"),
        }
        settings = {**SETTINGS, **own, **properties}
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self._folder / "log4j2.properties").write_text(LOGGING)

    def _format_storage(self) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java_command(
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            f"--cluster-id={cluster_id}",
            "-c",
            str(self._settings),
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

    def _await_answer(self, deadline: float) -> None:
        # librdkafka's own complaints about refused connections are expected here, and would only alarm.
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
        )
        while True:
            try:
                if admin.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                self._check_still_starting(deadline)

    def _check_still_starting(self, deadline: float) -> None:
        ended = self._running().poll()
        if ended is None and time.monotonic() < deadline:
            return
        reason = f"ended with {ended}" if ended is not None else f"did not answer within {START_SECONDS} s"
        raise ApacheKafkaUnavailable(
            f"Apache Kafka {reason} while starting; the end of its log says why:\n{self.log_tail()}"
        )


def main() -> None:
    """Run one Apache Kafka until Ctrl-C, and print its address."""
    parser = argparse.ArgumentParser(prog="python -m tools.apache_kafka", description=main.__doc__)
    parser.add_argument(
        "--heap", default="1G", help="size of the Java heap (default: 1G, as Kafka's own script)"
    )
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a property of the server"
    )
    options = parser.parse_args()
    properties = dict(setting.split("=", 1) for setting in options.set)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ApacheKafka(heap=options.heap, properties=properties) as kafka:
            sys.stdout.write(f"apache kafka ready on {kafka.bootstrap}\n")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)
    except ApacheKafkaUnavailable as unavailable:
        sys.exit(str(unavailable))


if __name__ == "__main__":
    main()
