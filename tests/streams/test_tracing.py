"""The micro-batches of a job as spans at a real receiver."""

import json

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from headrace import App, webhook
from headrace.streams.runner import Runner, RunOptions
from tests.otlp_receiver import OtlpReceiver, attributes, traceparent
from tests.sinks.receiver import Receiver
from tests.streams.workshop import Recorder, Workshop
from tests.test_tracing import CALLER, TRACE, headers_of

pytestmark = pytest.mark.timeout(240)


def test_a_batch_is_a_span_with_links_to_its_input_and_its_records_carry_it(workshop: Workshop) -> None:
    app = App("shop")
    numbers = app.stream("numbers", "n int")

    @app.job(into=app.topic("large", partitions=1))
    def large() -> DataFrame:
        return numbers.df.filter("n > 10")

    producer = Producer({"bootstrap.servers": workshop.bootstrap})
    for n in (5, 50, 500):
        value = json.dumps({"n": n})
        producer.produce("numbers", value.encode(), headers={"traceparent": CALLER} if n == 50 else None)
    producer.produce("numbers", b"no number")
    assert producer.flush(60) == 0
    with OtlpReceiver() as receiver:
        order = RunOptions(
            app=app, once=True, broker=workshop.bootstrap, state=workshop.state, tracing=receiver.endpoint
        )
        assert Runner(order, Recorder()).run() == 0
        (span,) = receiver.wait_for("shop.large batch")
    assert [link.trace_id.hex() for link in span.links] == [TRACE]
    assert attributes(span)["headrace.job"] == "shop.large"
    assert headers_of(workshop.bootstrap, "large") == [traceparent(span)] * 2
    assert headers_of(workshop.bootstrap, "large.dead") == [traceparent(span)]
    assert receiver.services == {"headrace-shop"}


def test_a_webhook_gets_the_span_of_the_batch(workshop: Workshop) -> None:
    app = App("shop")
    numbers = app.stream("numbers", "n int")
    workshop.write("numbers", {"n": 1}, {"n": 2})
    with OtlpReceiver() as collector, Receiver() as receiver:

        @app.job(into=webhook(receiver.url))
        def calls() -> DataFrame:
            return numbers.df

        for tracing in (collector.endpoint, None):
            options = RunOptions(
                app=app, once=True, broker=workshop.bootstrap, state=workshop.state, tracing=tracing
            )
            assert Runner(options, Recorder()).run() == 0
            workshop.write("numbers", {"n": 3})
        (span,) = collector.wait_for("shop.calls batch")
    sent = {request.row["n"]: request.headers.get("traceparent", "")[:-3] for request in receiver.requests}
    assert sent == {1: traceparent(span), 2: traceparent(span), 3: ""}
