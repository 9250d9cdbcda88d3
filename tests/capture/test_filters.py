"""What is left out or hidden, and the outbox."""

import hashlib

import pytest

from headrace.capture.errors import CaptureError, PreflightFailed
from tests.capture.database import Database, read_topic

USERS = "CREATE TABLE users (id int PRIMARY KEY, name text, email text, card text)"
TOPIC = "shop.public.users"


def test_columns_are_selected_masked_and_hashed(database: Database) -> None:
    database.run(USERS, "INSERT INTO users VALUES (1, 'Anna', 'a@example.com', '1234')")
    choice = {
        "columns": ("users.email", "users.card"),
        "mask": ("users.card",),
        "hash": ("users.email",),
        "salt": "pepper",
    }
    database.capture("users", **choice)
    database.run("INSERT INTO users VALUES (2, 'Bob', 'a@example.com', NULL)")
    database.capture("users", **choice)
    digest = hashlib.sha256(b"peppera@example.com").hexdigest()
    assert database.table(TOPIC) == {
        "1": {"id": 1, "email": digest, "card": "****"},
        "2": {"id": 2, "email": digest, "card": None},
    }


@pytest.mark.parametrize("choice", [{"mask": ("users.id",)}, {"hash": ("users.nothing",)}])
def test_keys_and_unknown_columns_cannot_be_masked(
    database: Database, choice: dict[str, tuple[str, ...]]
) -> None:
    database.run(USERS)
    with pytest.raises(PreflightFailed, match=r"users\.(id is part of the key|nothing)"):
        database.capture("users", **choice)


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
