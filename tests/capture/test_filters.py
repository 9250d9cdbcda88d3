"""Selected, masked and hashed columns."""

import hashlib

import pytest

from headrace.capture.errors import PreflightFailed
from tests.capture.database import Database

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
