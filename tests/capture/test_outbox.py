"""The outbox: messages, dead letters, and messages that their topics reject."""

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from headrace.capture.source import CaptureError
from tests.capture.database import Database, read_topic

USERS = "CREATE TABLE users (id int PRIMARY KEY, name text, email text, card text)"

TOPIC = "shop.public.users"


def test_outbox_rows_go_to_the_topics_that_they_name(database: Database) -> None:
    database.run(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text, key text, "
        "value jsonb, headers jsonb)",
        USERS,
        "INSERT INTO outbox (topic, key, value) VALUES ('greetings', 'k0', '{\"n\": 0}')",
    )
    database.capture("users", outbox="outbox")
    database.commit(
        "INSERT INTO users VALUES (1, 'Anna', NULL, NULL)",
        """INSERT INTO outbox (topic, key, value, headers)
           VALUES ('greetings', 'k1', '{"hello": "Anna"}', '{"trace": "t1", "n": 5, "none": null}')""",
        "DELETE FROM outbox",
    )
    database.capture("users", outbox="outbox")
    first, second = read_topic(database.bootstrap, "greetings", raw=True)
    assert (first.key(), first.value()) == (b"k0", b'{"n": 0}')
    assert (second.key(), second.value()) == (b"k1", b'{"hello": "Anna"}')
    assert second.headers() == [("n", b"5"), ("none", None), ("trace", b"t1")]
    assert list(database.table(TOPIC)) == ["1"]


def test_an_outbox_without_the_columns_is_rejected(database: Database) -> None:
    database.run("CREATE TABLE outbox (id int PRIMARY KEY, body text)")
    with pytest.raises(CaptureError, match="no columns `topic` and `value`"):
        database.capture(outbox="outbox")


def test_a_row_of_the_outbox_that_cannot_be_a_message_is_a_dead_letter(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.source.LARGEST_RECORD", 1 << 20)
    database.run(
        "CREATE TABLE outbox (id serial PRIMARY KEY, topic text, key text, value text, headers json)",
        "INSERT INTO outbox (topic, key, value) VALUES ('..', 'k0', 'in the snapshot')",
    )
    database.capture(outbox="outbox")
    database.run(
        "INSERT INTO outbox (topic, key, value) VALUES ('order events', 'k1', 'a blank')",
        "INSERT INTO outbox (topic, value, headers) VALUES ('orders', 'a list', '[1]')",
        "INSERT INTO outbox (topic, value) VALUES (NULL, 'no topic')",
        "INSERT INTO outbox (topic, value) VALUES ('orders', repeat('x', 1100000))",
        "INSERT INTO outbox (topic, key, value) VALUES ('orders', 'k5', 'good')",
    )
    database.capture(outbox="outbox")
    (sent,) = read_topic(database.bootstrap, "orders", raw=True)
    assert (sent.key(), sent.value()) == (b"k5", b"good")
    letters = read_topic(database.bootstrap, "shop.public.outbox.dead", raw=True)
    assert [(letter.key(), letter.value()) for letter in letters] == [
        (b"k0", b"in the snapshot"),
        (b"k1", b"a blank"),
        (None, b"a list"),
        (None, b"no topic"),
        (None, None),
    ]
    headers = [dict(letter.headers()) for letter in letters]
    assert [header["reason"].decode().partition(":")[0] for header in headers] == [
        "'..' is not a valid topic name",
        "'order events' is not a valid topic name",
        "the headers are not a JSON object",
        "'' is not a valid topic name",
        "the row has 1,100,006 bytes, and a record 1,048,576 at most",
    ]
    assert (headers[1]["table"], headers[1]["outbox.topic"]) == (b"public.outbox", b"order events")
    assert headers[2]["outbox.headers"] == b"[1]"


@pytest.mark.parametrize(
    ("key", "size", "config", "remedy"),
    [
        ("'k'", 2 << 20, {}, {"max.message.bytes": str(65 << 20)}),
        ("NULL", 5, {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}),
    ],
)
def test_a_message_that_its_topic_refuses_stops_the_capture_until_the_topic_is_altered(
    database: Database, key: str, size: int, config: dict[str, str], remedy: dict[str, str]
) -> None:
    admin = AdminClient({"bootstrap.servers": database.bootstrap})
    admin.create_topics([NewTopic("orders", 1, config=config)])["orders"].result()
    database.run("CREATE TABLE outbox (id serial PRIMARY KEY, topic text, key text, value text)")
    database.capture(outbox="outbox")
    database.run(f"INSERT INTO outbox (topic, key, value) VALUES ('orders', {key}, repeat('x', {size}))")
    ((name, setting),) = remedy.items()
    command = rf"headrace topic alter TOPIC --config {name}={setting}`.*slot is kept: start the capture again"
    with pytest.raises(CaptureError, match=rf"store a batch in orders/0.*{command}"):
        database.capture(outbox="outbox")
    assert not any("Retrying" in text for text in database.messages)
    entry = ConfigEntry(name, setting, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    assert database.capture(outbox="outbox") == 1


def test_a_large_message_of_the_outbox_does_not_share_a_batch(database: Database) -> None:
    database.run("CREATE TABLE outbox (id serial PRIMARY KEY, topic text, key text, value text)")
    database.capture(outbox="outbox")
    database.commit(
        *(
            f"INSERT INTO outbox (topic, key, value) VALUES ('orders', 'k', repeat('x', {size}))"
            for size in (200_000, 1_000_000, 200_000, 1_000_000)
        )
    )
    assert database.capture(outbox="outbox") == 4
