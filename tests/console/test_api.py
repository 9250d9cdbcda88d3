"""The JSON API of the console, for a real broker."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from headrace.testing import EmbeddedBroker
from tests.console.shop import console


def get(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def new_topic(client: httpx.Client, partitions: int = 1) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    assert client.post("/api/topics", json={"topic": name, "partitions": partitions}).status_code == 200
    return name


def test_topics_are_listed_with_the_number_of_their_records(client: httpx.Client) -> None:
    topics = {each["topic"]: each for each in get(client, "/api/topics")["topics"]}
    assert (topics["orders"]["records"], topics["orders"]["partitions"]) == (120, 3)
    assert topics["mails.mailer.dead"]["kind"] == "dead letters"
    assert topics["shop.Cart.events"]["kind"] == "events"
    assert topics["__consumer_offsets"]["kind"] == "internal"


def test_a_topic_has_partitions_and_settings(client: httpx.Client) -> None:
    topic = get(client, "/api/topics/orders")
    assert sum(each["end"] for each in topic["partitions"]) == 120
    assert {"name": "cleanup.policy", "value": "delete", "is_default": True} in topic["settings"]


def test_a_produced_message_is_found_with_key_headers_and_value(client: httpx.Client) -> None:
    topic = new_topic(client)
    record = {"key": "k", "value": '{"n": 1}', "headers": {"trace": "t"}, "partition": 0}
    at = client.post(f"/api/topics/{topic}/messages", json=record).json()
    (found,) = get(client, f"/api/topics/{topic}/messages")["messages"]
    assert at == {"partition": 0, "offset": 0}
    assert (found["key"], found["value"], found["headers"]) == ("k", '{"n": 1}', [["trace", "t"]])


def test_pages_from_the_newest_on_show_every_message_once(client: httpx.Client) -> None:
    found, token = [], None
    while True:
        page = get(client, "/api/topics/orders/messages", limit=7, **({"next": token} if token else {}))
        found += [json.loads(each["value"])["n"] for each in page["messages"]]
        token = page["next"]
        if token is None:
            break
    assert sorted(found) == list(range(120))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n<3", {0, 1, 2}),
        ("key=tea n>=116", {116}),
        ("header.trace=t17", {17}),
        ('product~"COC" n<4', {2}),
        ("paid=true n<5", {0, 3}),
        ("t119", {119}),
        ("nothing-has-this", set()),
        ("product!=tea n<3", {1, 2}),
    ],
)
def test_a_filter_has_terms_for_fields_keys_and_headers(
    client: httpx.Client, text: str, expected: set[int]
) -> None:
    for start in ("start", "newest"):
        query = {"from": start, "filter": text, "limit": 500}
        page = get(client, "/api/topics/orders/messages", **query)
        assert {json.loads(each["value"])["n"] for each in page["messages"]} == expected
        assert page["scanned"] == 120


def test_messages_are_read_from_an_offset_and_from_a_time(client: httpx.Client) -> None:
    topic = new_topic(client)
    for number in range(4):
        client.post(f"/api/topics/{topic}/messages", json={"value": str(number)})
    page = get(client, f"/api/topics/{topic}/messages", **{"from": "2"})
    assert [each["value"] for each in page["messages"]] == ["2", "3"]
    page = get(client, f"/api/topics/{topic}/messages", **{"from": "-1h"})
    assert len(page["messages"]) == 4
    assert client.get(f"/api/topics/{topic}/messages?from=nonsense").status_code == 400


def test_aborted_records_are_not_shown_and_binary_ones_are(
    client: httpx.Client, kafka: EmbeddedBroker
) -> None:
    topic = new_topic(client)
    config = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0}
    producer = Producer(config)
    producer.init_transactions(30)
    for value, end in ((b"no", producer.abort_transaction), (b"\xff\xfe", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        end(30)
    (found,) = get(client, f"/api/topics/{topic}/messages")["messages"]
    assert (found["value"], found["encoding"]) == ("//4=", "base64")


def test_a_long_value_is_cut(client: httpx.Client) -> None:
    topic = new_topic(client)
    client.post(f"/api/topics/{topic}/messages", json={"value": "é" * 40_000})
    (found,) = get(client, f"/api/topics/{topic}/messages")["messages"]
    assert (found["cut"], found["bytes"]) == (True, 80_000)
    assert set(found["value"]) == {"é"}


def test_groups_have_lag_and_can_be_moved(client: httpx.Client) -> None:
    (group,) = [each for each in get(client, "/api/groups")["groups"] if each["group"] == "billing"]
    assert (group["lag"] > 0, group["topics"]) == (True, ["orders"])
    moved = client.post("/api/groups/billing/seek", json={"to": "start", "dry_run": True})
    assert {move["after"] for move in moved.json()["moves"]} == {0}
    assert get(client, "/api/groups/billing")["lag"] == group["lag"]
    client.post("/api/groups/billing/seek", json={"to": "end"})
    assert get(client, "/api/groups/billing")["lag"] == 0


def test_dead_letters_of_a_queue_are_redriven_once(client: httpx.Client) -> None:
    (queue,) = get(client, "/api/queues")["queues"]
    assert (queue["group"], queue["dead"]) == ("mailer", 2)
    letters = get(client, "/api/queues/mailer/dead")
    assert [each["origin"] for each in letters["letters"]] == [1, 3]
    answer = client.post("/api/queues/mailer/redrive", json={"topic": "mails", "count": 1})
    assert answer.json() == {"topic": "mails", "moved": 1, "left": 1}
    queue = get(client, "/api/queues/mailer")
    assert queue["dead"] == {"mails.mailer.dead": 1}
    assert queue["partitions"][0]["left"] > 0


def test_an_open_transaction_is_shown_and_aborted(client: httpx.Client, kafka: EmbeddedBroker) -> None:
    name = f"tx/{uuid.uuid4().hex[:6]}"
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    topic = new_topic(client)
    producer.produce(topic, b"{}", partition=0)
    producer.flush()
    newest = get(client, "/api/transactions")["transactions"][0]
    assert (newest["id"], newest["state"], newest["partitions"]) == (name, "Ongoing", [f"{topic}/0"])
    path = f"/api/transactions/{name.replace('/', '%2F')}/abort"
    assert client.post(path, json={}).status_code == 200
    assert client.post(path, json={}).status_code == 409


def test_brokers_are_shown_with_their_health(client: httpx.Client) -> None:
    brokers = get(client, "/api/brokers")
    assert [each["controller"] for each in brokers["brokers"]] == [True]
    assert brokers["unhealthy"] == []


def test_views_have_keys_columns_and_jobs(client: httpx.Client) -> None:
    (view,) = get(client, "/api/views")["views"]
    assert (view["view"], view["key"], view["job"]) == ("revenue", ["id"], "test.shelf")


def test_an_aggregate_has_events_and_a_state_at_each_version(client: httpx.Client) -> None:
    events = get(client, "/api/aggregates/shop.Cart/events", id="cart-1")["events"]
    assert [each["type"] for each in events] == ["CartCreated", "Added", "Added"]
    now = get(client, "/api/aggregates/shop.Cart/state", id="cart-1")
    before = get(client, "/api/aggregates/shop.Cart/state", id="cart-1", version=2)
    assert now["state"]["items"] == {"tea": 2, "cocoa": 1}
    assert before["state"]["items"] == {"tea": 2}
    assert now["steps"][1]["changes"] == [["items.tea", None, 2]]


def test_a_resource_is_also_a_stream_that_sends_what_changes(client: httpx.Client) -> None:
    topic = new_topic(client)
    with client.stream("GET", f"/api/topics/{topic}", headers={"accept": "text/event-stream"}) as stream:
        documents = _documents(stream.iter_lines())
        assert next(documents)["partitions"][0]["end"] == 0
        client.post(f"/api/topics/{topic}/messages", json={"value": "x"})
        assert next(documents)["partitions"][0]["end"] == 1


def _documents(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line == "event: document":
            yield json.loads(next(lines).removeprefix("data: "))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/topics/nope", 404),
        ("/api/groups/nope", 404),
        ("/api/queues/nope", 404),
        ("/api/jobs/nope", 404),
        ("/api/topics/orders/messages?partition=9", 404),
        ("/api/topics/orders/messages?limit=-1", 400),
        ("/api/topics/a%20b", 400),
        ("/console/nope.js", 404),
        ("/console/..%2f__init__.py", 404),
    ],
)
def test_what_does_not_exist_has_an_error_that_says_so(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_a_page_of_another_site_can_do_nothing(client: httpx.Client) -> None:
    body = {"topic": "stolen"}
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        assert client.post("/api/topics", json=body, headers=headers).status_code in (403, 421)
    form = client.post("/api/topics", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert form.status_code == 415
    assert "stolen" not in client.get("/api/topics").text


def test_the_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    answer = client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http" not in answer.text
    for name in ("main.js", "console.css", "icon.svg"):
        assert client.get(f"/console/{name}").status_code == 200


def test_a_read_only_console_changes_nothing(kafka: EmbeddedBroker) -> None:
    with console(kafka.bootstrap, read_only=True) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/api/about").json()["read_only"] is True
        for path in ("/api/topics", "/topics/orders", "/api/queues/mailer/redrive", "/v1/logs"):
            assert client.post(path, json={}).status_code == 403
        assert client.get("/api/topics").status_code == 200
