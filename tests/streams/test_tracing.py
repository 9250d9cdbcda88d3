"""The micro-batches of a job as spans at a real receiver."""

import json

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from headrace import App
from headrace.streams.runner import Runner, RunOptions
from tests.otlp_receiver import OtlpReceiver, attributes, traceparent
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
