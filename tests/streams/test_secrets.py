"""The secrets of outputs: in no plan, event log, log, checkpoint, record or command line."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword
from confluent_kafka import Consumer, TopicPartition
from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from headrace import App, email, postgres, redis, webhook
from headrace.client.cluster import Cluster
from headrace.sinks.staging import RowStaging
from headrace.streams.command import explain_job
from headrace.streams.job_status import STATUS_TOPIC, StatusReader
from headrace.testing.redis import RedisServer
from tests.cli.terminal import wait_until
from tests.leaks import CommandLines, files_with, is_in
from tests.sinks.mailbox import Mailbox
from tests.sinks.receiver import Behavior, Receiver, Request
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)

DATABASE, CACHE, MAIL = "b6c1-of-the-database", "b6c1-of-the-cache", "b6c1-of-the-mail"
ADDRESS, SIGNATURE, TOKEN = "b6c1-of-the-address", "b6c1-of-the-signature", "b6c1-of-the-token"
SECRETS = (DATABASE, CACHE, MAIL, ADDRESS, SIGNATURE, TOKEN)


@contextmanager
def recording(spark: SparkSession, folder: Path) -> Iterator[None]:
    """A block whose plans and events Spark writes into an event log, and what it logs into `spark.log`."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
    settings = context.getConf().clone().set("spark.eventLog.compress", "false")
    events = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secrets", jvm.scala.Option.apply(None), jvm.java.net.URI(folder.as_uri()), settings
    )
    log4j = jvm.org.apache.logging.log4j
    logger = log4j.core.LoggerContext.getContext(False).getConfiguration().getRootLogger()
    before = logger.getLevel()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    target = log4j.core.appender.FileAppender.newBuilder().withFileName(str(folder / "spark.log"))
    appender = target.setName("secrets").setLayout(layout).build()
    mode = spark.conf.get("spark.sql.ui.explainMode")
    appender.start()
    events.start()
    logger.addAppender(appender, None, None)
    context.addSparkListener(events)
    log4j.core.config.Configurator.setRootLevel(log4j.Level.INFO)
    spark.conf.set("spark.sql.ui.explainMode", "extended")
    try:
        yield
        context.listenerBus().waitUntilEmpty()
    finally:
        spark.conf.set("spark.sql.ui.explainMode", mode or "simple")
        log4j.core.config.Configurator.setRootLevel(before)
        context.removeSparkListener(events)
        logger.removeAppender("secrets")
        events.stop()
        appender.stop()


def records(bootstrap: str, *topics: str) -> bytes:
    """Keys, values and headers of all records of topics with one partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
    found, ended = [], 0
    while ended < len(topics):
        message = consumer.poll(100)
        assert message is not None
        if message.error():
            ended += 1
        else:
            headers = message.headers() or []
            found += [message.key() or b"", message.value() or b"", repr(headers).encode()]
    consumer.close()
    return b"\n".join(found)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis that asks for a password."""
    with RedisServer(tmp_path / "redis") as server:
        with Redis.from_url(server.url) as client:
            client.config_set("requirepass", CACHE)
        yield f"{server.url}&password={CACHE}"


@pytest.fixture
def post_office() -> Iterator[Mailbox]:
    """A mail server that refuses a wrong password."""

    def log_in(_: Any, __: Any, ___: Any, mechanism: str, data: LoginPassword) -> AuthResult:
        return AuthResult(success=data == LoginPassword(b"shop", MAIL.encode()), handled=False)

    with Mailbox(auth_require_tls=False, authenticator=log_in) as mailbox:
        yield mailbox


def test_secrets_of_outputs_are_nowhere(
    workshop: Workshop,
    spark: SparkSession,
    database: str,
    cache: str,
    post_office: Mailbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("headrace.streams.outputs.INLINE_BYTES", 0)  # tasks connect to the database
    project, seen = tmp_path / "project", tmp_path / "seen"
    for folder in (project, seen):
        folder.mkdir()
    (project / "headrace.toml").write_text(f'[redis]\nurl = "{cache}"\n')
    monkeypatch.setenv("HEADRACE_PROJECT", str(project))
    monkeypatch.setenv("HEADRACE_SMTP", f"smtp://shop:{MAIL}@127.0.0.1:{urlsplit(post_office.url).port}")
    workshop.state = tmp_path / "state"
    is_back = threading.Event()

    def behave(request: Request) -> Behavior:
        return 404 if request.row["n"] == 2 else 204 if is_back.is_set() else 503

    with Receiver(behave) as receiver:
        url = receiver.url.replace("/events", f"/T0/{ADDRESS}")
        receiver.reason = f"Cannot POST /T0/{ADDRESS} with {SIGNATURE} and Bearer {TOKEN}"
        app = App("shop")
        numbers = app.stream("numbers", "n int")

        @app.job(
            into=[
                app.topic("copied", partitions=1),
                postgres("sold", key="n", url=f"{database}?password={quote(DATABASE)}"),
                redis("sold:{n}"),
                email("ann@example.com", subject="Sold", body="{n}", sender="shop@example.com"),
                webhook(url, secret=SIGNATURE, headers={"Authorization": f"Bearer {TOKEN}"}),
            ]
        )
        def sold() -> DataFrame:
            numbers.df.explain(True)
            return numbers.df

        workshop.write("numbers", {"n": 1}, {"n": 2})
        reader = StatusReader()
        with (
            CommandLines() as lines,
            recording(spark, seen),
            Cluster.of(workshop.bootstrap) as cluster,
            workshop.running(app),
        ):
            wait_until(lambda: "responded 503" in json.dumps(reader.read(cluster)), "it", deadline_s=100)
            is_back.set()
            wait_until(lambda: reader.read(cluster)["shop.sold"]["dead"] == 1, "a letter", deadline_s=100)
        plan = json.dumps(explain_job(app, "sold").to_json())
        printed = "".join(capfd.readouterr()) + plan + repr(app.jobs) + repr(workshop.recorder.__dict__)
        written = records(workshop.bootstrap, STATUS_TOPIC, "copied", sold.dead_topic)
    assert list(workshop.state.rglob("offsets/0"))
    # Everything was used ...
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM sold").fetchall() == [(2,)]
    with Redis.from_url(cache) as client:
        assert client.hget("sold:1", "n") == b"1"
    assert post_office.texts() == ["1", "2"]
    assert {request.headers["Authorization"] for request in receiver.requests} == {f"Bearer {TOKEN}"}
    # ... and looked at.
    assert "== Physical Plan ==" in printed
    assert b"Cannot POST *** with *** and ***" in written
    assert files_with(seen, "MapInArrow")
    assert (seen / "spark.log").stat().st_size
    folders = (seen, workshop.state, Path(spark.sparkContext._temp_dir).parent)  # type: ignore[attr-defined]
    for secret in SECRETS:
        found: list[object] = [file for folder in folders for file in files_with(folder, secret)]
        found += [line for line in lines.seen if is_in(line, secret)]
        assert (found, is_in(written + printed.encode(), secret)) == ([], False), secret


def test_only_sinks_that_tasks_open_are_copied_to_tasks(database: str) -> None:
    """What tasks need is in the functions that Spark sends them, and only that."""
    sinks = (
        postgres("sold", url=f"{database}?password={DATABASE}"),
        redis("sold", url=f"redis://:{CACHE}@localhost"),
        webhook(f"https://hooks.example.com/{ADDRESS}", secret=SIGNATURE),
    )
    copied = dumps(RowStaging.of(sinks, None))  # type: ignore[arg-type]
    assert [secret for secret in SECRETS if is_in(copied, secret)] == [DATABASE]
