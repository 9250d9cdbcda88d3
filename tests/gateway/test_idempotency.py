"""Idempotency keys: one answer and one copy of the records, also after a crash of the gateway or broker."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.broker.process import BrokerProcess
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.testing import EmbeddedBroker
from tests.gateway.topics import TopicContent


def post(client: httpx.Client, topic: TopicContent, key: str, value: object) -> httpx.Response:
    return client.post(topic.path, json=value, headers={"Idempotency-Key": key})


def test_the_same_key_gets_the_same_answer_and_stores_once(client: httpx.Client, topic: TopicContent) -> None:
    first = post(client, topic, "k", {"a": 1})
    again = post(client, topic, "k", {"a": 1})
    other = post(client, topic, "l", {"a": 1})
    assert first.json() == again.json()
    assert other.json() != first.json()
    assert topic.values() == [b'{"a":1}'] * 2


def test_a_key_in_quotes_is_the_same_key(client: httpx.Client, topic: TopicContent) -> None:
    assert post(client, topic, "k", 1).json() == post(client, topic, '"k"', 1).json()


def test_a_key_with_another_body_is_refused(client: httpx.Client, topic: TopicContent) -> None:
    post(client, topic, "k", 1)
    answer = post(client, topic, "k", 2)
    assert answer.status_code == 422
    assert topic.values() == [b"1"]


def test_keys_of_different_topics_are_different(client: httpx.Client, topic: TopicContent) -> None:
    other = TopicContent(topic.bootstrap)
    assert post(client, topic, "k", 1).status_code == post(client, other, "k", 2).status_code == 200
    assert (topic.values(), other.values()) == ([b"1"], [b"2"])


def test_concurrent_requests_with_one_key_store_once(client: httpx.Client, topic: TopicContent) -> None:
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(post(client, topic, f"k{n % 4}", n % 4)))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.text for answer in answers}) == 4
    assert sorted(topic.values(), key=str) == [b"0", b"1", b"2", b"3"]


def test_a_batch_with_a_key_is_stored_as_a_whole_or_not_at_all(
    client: httpx.Client, topic: TopicContent
) -> None:
    headers = {"Idempotency-Key": "k", "Content-Type": "application/x-ndjson"}
    assert client.post(topic.path, content=b"1\nnot json\n3", headers=headers).status_code == 400
    assert topic.values() == []
    assert client.post(topic.path, content=b"1\n2\n3", headers=headers).status_code == 200
    assert topic.values() == [b"1", b"2", b"3"]


def test_a_request_that_the_broker_refuses_does_not_fail_its_neighbors(
    client: httpx.Client, topic: TopicContent
) -> None:
    small = TopicContent(topic.bootstrap, max_message_bytes="500")
    statuses: dict[str, int] = {}

    def send(target: TopicContent, key: str, value: object) -> None:
        statuses[key] = post(client, target, key, value).status_code

    threads = [threading.Thread(target=send, args=(topic, f"ok{n}", n)) for n in range(6)]
    threads += [threading.Thread(target=send, args=(small, f"large{n}", "x" * 1000)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = {key: status for key, status in statuses.items() if status != 200}
    assert refused == {"large0": 413, "large1": 413}
    assert len(topic.values()) == 6
    assert small.values() == []


def test_a_gateway_that_starts_again_knows_the_keys(kafka: EmbeddedBroker) -> None:
    topic = TopicContent(kafka.bootstrap)
    options = GatewayOptions(broker=kafka.bootstrap, name="restarted")
    answers = []
    for _ in range(2):
        with GatewayThread(options) as running, httpx.Client(base_url=running.url, timeout=60) as client:
            answers.append(post(client, topic, "k", 1).json())
    assert answers[0] == answers[1]
    assert topic.values() == [b"1"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        yield running


def test_records_survive_kills_of_the_broker_once(process: BrokerProcess) -> None:
    """Clients repeat a request until it is answered with 200: then it is stored, and once."""
    topic = TopicContent(process.bootstrap)
    plain = TopicContent(process.bootstrap)
    acknowledged: list[int] = []
    with GatewayThread(GatewayOptions(broker=process.bootstrap, produce_timeout_s=5)) as running:

        def send(client: httpx.Client, number: int) -> None:
            if client.post(plain.path, json=number).status_code == 200:
                acknowledged.append(number)
            while post(client, topic, f"k{number}", number).status_code != 200:
                pass

        def send_all(start: int) -> None:
            with httpx.Client(base_url=running.url, timeout=60) as client:
                for number in range(start, start + 15):
                    send(client, number)

        threads = [threading.Thread(target=send_all, args=(start,)) for start in range(0, 60, 15)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 10:
            threads[0].join(0.01)
        process.restart()
        while len(acknowledged) < 25 and any(thread.is_alive() for thread in threads):
            threads[0].join(0.01)
        process.restart()
        for thread in threads:
            thread.join()
    assert sorted(int(value or b"") for value in topic.values()) == list(range(60))
    stored = [int(value or b"") for value in plain.values()]
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
