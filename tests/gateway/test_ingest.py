"""Records over HTTP: every content type, what is stored, and what is answered."""

import gzip
import json
import threading
import time
from base64 import b64encode
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client.cluster import Cluster
from headrace.client.offsets import commit_offsets
from headrace.client.partition import TopicPartition
from headrace.gateway.ingest import ENVELOPE
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.testing import EmbeddedBroker
from tests.gateway.topics import TopicContent, read_topic

NDJSON = {"Content-Type": "application/x-ndjson"}
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "OrderPlaced"}


def test_an_event_is_stored_and_its_offset_is_answered(client: httpx.Client, topic: TopicContent) -> None:
    before_ms = int(time.time() * 1000)
    answer = client.post(topic.path, content=b'{"price": 1.10}', headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json() == {"topic": topic.name, "offsets": [{"partition": 0, "offset": 0}]}
    (record,) = topic.records()
    assert (record.key, record.value) == (None, b'{"price": 1.10}')
    assert before_ms <= record.timestamp <= time.time() * 1000
    ((name, received),) = record.headers
    assert name == "received"
    assert received is not None
    assert received.decode().startswith("20")
    assert received.decode().endswith("Z")


def test_key_and_partition_are_those_of_the_query(client: httpx.Client, kafka: EmbeddedBroker) -> None:
    topic = TopicContent(kafka.bootstrap, partitions=3)
    answer = client.post(topic.path, params={"key": "tea & cup", "partition": 2}, json={"a": 1})
    assert answer.json()["offsets"] == [{"partition": 2, "offset": 0}]
    assert topic.records()[0].key == b"tea & cup"


def test_elements_of_an_array_are_records_as_they_were_written(
    client: httpx.Client, topic: TopicContent
) -> None:
    content = b' [ {"n": 1.10}, 12345678901234567890123 ,"text", null,[1, 2]] '
    answer = client.post(topic.path, content=content, headers={"Content-Type": "application/json"})
    assert [place["offset"] for place in answer.json()["offsets"]] == [0, 1, 2, 3, 4]
    assert topic.values() == [b'{"n": 1.10}', b"12345678901234567890123", b'"text"', b"null", b"[1, 2]"]


def test_lines_are_records_and_each_invalid_one_has_its_error(
    client: httpx.Client, topic: TopicContent
) -> None:
    answer = client.post(topic.path, content=b'{"a":1}\n\nnot json\r\n{"b":2}\n', headers=NDJSON)
    assert answer.status_code == 207
    first, second, third = answer.json()["offsets"]
    assert (first["offset"], third["offset"]) == (0, 1)
    assert second["status"] == 400
    assert "line 3 is not JSON" in second["error"]
    assert topic.values() == [b'{"a":1}', b'{"b":2}']


def test_an_envelope_sets_key_headers_partition_and_timestamp(
    client: httpx.Client, kafka: EmbeddedBroker
) -> None:
    topic = TopicContent(kafka.bootstrap, partitions=2)
    records: list[dict[str, Any]] = [
        {"key": "a", "value": {"n": 1}, "headers": {"trace": "x"}, "partition": 1, "timestamp": 1_000},
        {"key": {"id": 1}, "value": None, "partition": 1},
        {"value": 1, "partition": -1},
        {"key": "no value"},
        {"value": 1, "headers": {"n": 1}},
        {"value": 1, "surprise": 2},
        {"value": 1, "timestamp": "now"},
    ]
    answer = client.post(
        topic.path, content=json.dumps({"records": records}), headers={"Content-Type": ENVELOPE}
    )
    assert answer.status_code == 207
    assert [place.get("status") for place in answer.json()["offsets"]] == [None, None, *[400] * 5]
    first, second = topic.records()
    assert (first.key, first.value, first.timestamp) == (b"a", b'{"n":1}', 1_000)
    assert first.headers[0] == ("trace", b"x")
    assert (second.key, second.value) == (b'{"id":1}', None)


def test_text_and_bytes_are_stored_as_they_are(client: httpx.Client, topic: TopicContent) -> None:
    for content_type in ("text/plain", "application/octet-stream"):
        answer = client.post(topic.path, content=b"\0not json", headers={"Content-Type": content_type})
        assert answer.status_code == 200
    assert topic.values() == [b"\0not json"] * 2


def test_compressed_bodies_are_read(client: httpx.Client, topic: TopicContent) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert client.post(topic.path, content=gzip.compress(b'{"a":1}'), headers=headers).status_code == 200
    assert topic.values() == [b'{"a":1}']
    bomb = client.post(topic.path, content=gzip.compress(b" " * (9 << 20)), headers=headers)
    assert bomb.status_code == 413
    for broken in (b"not gzip", gzip.compress(b'{"a":1}')[:-9]):
        assert client.post(topic.path, content=broken, headers=headers).status_code == 400


def headers_of(record: Any) -> dict[str, bytes]:
    return {name: value for name, value in record.headers if name != "received"}


def test_cloud_events_in_all_modes_become_the_same_record(client: httpx.Client, topic: TopicContent) -> None:
    event = {**EVENT, "partitionkey": "k", "datacontenttype": "application/json", "data": {"n": 1}}
    binary = {f"ce-{name}": str(value) for name, value in event.items() if not name.startswith("data")}
    answers = [
        client.post(
            topic.path,
            content=json.dumps(event),
            headers={"Content-Type": "application/cloudevents+json; charset=utf-8"},
        ),
        client.post(
            topic.path,
            content=json.dumps([event]),
            headers={"Content-Type": "application/cloudevents-batch+json"},
        ),
        client.post(topic.path, content=b'{"n":1}', headers={"Content-Type": "application/json", **binary}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    records = topic.records()
    assert {(record.key, record.value) for record in records} == {(b"k", b'{"n":1}')}
    assert [headers_of(record) for record in records] == [
        {
            "ce_specversion": b"1.0",
            "ce_id": b"1",
            "ce_source": b"/shop",
            "ce_type": b"OrderPlaced",
            "ce_partitionkey": b"k",
            "content-type": b"application/json",
        }
    ] * 3


def test_the_data_of_a_cloud_event_may_be_bytes_text_or_missing(
    client: httpx.Client, topic: TopicContent
) -> None:
    events = [
        {**EVENT, "data_base64": b64encode(b"\0\xff").decode()},
        {**EVENT, "datacontenttype": "text/plain", "data": "tea"},
        EVENT,
    ]
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    assert client.post(topic.path, content=json.dumps(events), headers=kind).status_code == 200
    assert topic.values() == [b"\0\xff", b"tea", None]


def test_attributes_in_headers_are_percent_decoded(client: httpx.Client, topic: TopicContent) -> None:
    attributes = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/caf%C3%A9", "ce-type": "t"}
    assert client.post(topic.path, headers=attributes).status_code == 200
    assert headers_of(topic.records()[0])["ce_source"] == "/café".encode()


@pytest.mark.parametrize("missing", ["id", "source", "type", "specversion"])
def test_a_cloud_event_without_a_required_attribute_is_refused(
    client: httpx.Client, topic: TopicContent, missing: str
) -> None:
    event = {name: value for name, value in EVENT.items() if name != missing}
    kind = {"Content-Type": "application/cloudevents+json"}
    answer = client.post(topic.path, content=json.dumps(event), headers=kind)
    assert answer.status_code == 400
    assert missing in answer.json()["error"]
    assert topic.values() == []


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b"NaN"),
        ("application/json", b"\xff"),
        ("application/json", b"[1,]"),
        ("application/json", b"[1 2]"),
        ("application/json", b"[1] 2"),
        ("application/json", b"["),
        ("application/json", b"[]"),
        ("application/json", b"[" * 100_000),
        ("application/json", b'{"a":' * 100_000),
        ("application/x-ndjson", b"\n\n"),
        (ENVELOPE, b"[]"),
        (ENVELOPE, b'{"records": {}}'),
        ("application/cloudevents-batch+json", b"{}"),
        ("application/cloudevents+json", b"[]"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(
    client: httpx.Client, topic: TopicContent, content_type: str, content: bytes
) -> None:
    answer = client.post(topic.path, content=content, headers={"Content-Type": content_type})
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert topic.values() == []


@given(st.binary(max_size=40) | st.text('[]{},:"\\ 01eNaulnfty\n', max_size=40).map(str.encode))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_stored_as_it_is_and_anything_else_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/topics/anything", content=body, headers={"Content-Type": "application/json"})
    try:
        document = json.loads(body.decode(), parse_constant=_fail)
    except ValueError:
        assert answer.status_code == 400
        return
    if document == []:
        assert answer.status_code == 400
        return
    expected = document if isinstance(document, list) else [document]
    assert len(answer.json()["offsets"]) == len(expected)


def _fail(name: str) -> None:
    raise ValueError(name)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/a%2Fb", 404),
        ("/topics/a b", 400),
        ("/topics/" + "a" * 250, 400),
        ("/topics/headrace.views", 403),
        ("/topics/orders?partition=x", 400),
        ("/topics/orders?partition=7", 404),
        ("/topics/orders?partition=99999999999999999999", 400),
    ],
)
def test_a_topic_or_partition_that_cannot_be_written_is_refused(
    client: httpx.Client, path: str, status: int
) -> None:
    client.post("/topics/orders", json=1)
    assert client.post(path, json=1).status_code == status


def test_an_unknown_content_type_is_refused(client: httpx.Client) -> None:
    answer = client.post("/topics/orders", content=b"<a/>", headers={"Content-Type": "text/xml"})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]


def test_a_record_larger_than_its_topic_allows_is_refused(
    client: httpx.Client, kafka: EmbeddedBroker
) -> None:
    topic = TopicContent(kafka.bootstrap, max_message_bytes="1000")
    assert client.post(topic.path, json="x" * 2000).status_code == 413
    assert client.post(topic.path, json="x" * 100).status_code == 200


def test_a_full_topic_is_answered_with_429(client: httpx.Client, kafka: EmbeddedBroker) -> None:
    topic = TopicContent(
        kafka.bootstrap, **{"headrace.overflow": "drop-newest", "headrace.overflow.records": "2"}
    )
    answers = [client.post(topic.path, json=number) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[-1].headers["Retry-After"] == "1"
    assert topic.values() == [b"0", b"1"]


def test_a_topic_that_blocks_its_producers_is_answered_with_429_in_time(kafka: EmbeddedBroker) -> None:
    overflow = {"": "block", ".records": "1", ".groups": "readers", ".timeout.ms": "200"}
    topic = TopicContent(
        kafka.bootstrap, **{f"headrace.overflow{name}": value for name, value in overflow.items()}
    )
    with Cluster.of(kafka.bootstrap) as cluster:
        commit_offsets(cluster, "readers", {TopicPartition(topic.name, 0): 0})
    options = GatewayOptions(broker=kafka.bootstrap, produce_timeout_s=1.5)
    with GatewayThread(options) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        assert client.post(topic.path, json=1).status_code == 200
        answer = client.post(topic.path, json=2)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert topic.values() == [b"1"]


def test_more_bytes_than_fit_in_flight_are_answered_with_429(kafka: EmbeddedBroker) -> None:
    topic = TopicContent(kafka.bootstrap)
    options = GatewayOptions(broker=kafka.bootstrap, max_in_flight_bytes=1_000)
    with GatewayThread(options) as running:
        started, release = threading.Event(), threading.Event()

        def slow_body() -> Any:
            yield b'{"a":'
            started.set()
            release.wait(60)
            yield b"1}"

        answers: list[httpx.Response] = []

        def post() -> None:
            with httpx.Client(base_url=running.url, timeout=60) as client:
                headers = {"Content-Type": "application/json", "Content-Length": "7"}
                answers.append(client.post(topic.path, content=slow_body(), headers=headers))

        slow = threading.Thread(target=post)
        slow.start()
        started.wait(60)
        with httpx.Client(base_url=running.url, timeout=60) as client:
            full = client.post(topic.path, json="x" * 1_000)
            while full.status_code == 200:  # the first request has not arrived yet
                full = client.post(topic.path, json="x" * 1_000)
            assert (full.status_code, full.headers["Retry-After"]) == (429, "1")
            release.set()
            slow.join()
            assert answers[0].status_code == 200
            assert client.post(topic.path, json=2).status_code == 200


def test_without_a_broker_the_answer_is_503() -> None:
    options = GatewayOptions(broker="127.0.0.1:1", produce_timeout_s=1.0)
    with GatewayThread(options) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        answer = client.post("/topics/orders", json=1)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_concurrent_requests_each_get_the_offset_of_their_own_record(
    client: httpx.Client, topic: TopicContent
) -> None:
    offsets: dict[int, int] = {}

    def post(start: int) -> None:
        for number in range(start, start + 25):
            answer = client.post(topic.path, json=number)
            offsets[number] = answer.json()["offsets"][0]["offset"]

    threads = [threading.Thread(target=post, args=(start,)) for start in range(0, 200, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {record.offset: int(record.value or b"") for record in read_topic(topic.bootstrap, topic.name)}
    assert stored == {offset: number for number, offset in offsets.items()}
    assert len(stored) == 200
