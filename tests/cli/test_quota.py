"""Quotas on the command line."""

from collections.abc import Callable

import pytest

from tests.cli.terminal import Terminal

NewName = Callable[[], str]


def test_quotas_are_set_changed_listed_and_deleted(terminal: Terminal, new_name: NewName) -> None:
    user = new_name()
    done = terminal.do("quota", "set", "--user", user, "--producer-byte-rate", "1000000")
    assert done.out == f"set quotas of user {user}\n"
    terminal.do("quota", "set", "--user", user, "--request-percentage", "12.5")
    listed = terminal.do("quota", "list", "--json").json
    assert {
        "user": user,
        "client_id": None,
        "producer_byte_rate": 1000000,
        "consumer_byte_rate": None,
        "request_percentage": 12.5,
    } in listed
    assert any(line.split()[0] == user for line in terminal.do("quota", "list").lines)
    deleted = terminal.do("quota", "delete", "--user", user, "--yes")
    assert deleted.out == f"deleted quotas of user {user}\n"
    assert user not in terminal.do("quota", "list").out


def test_defaults_and_client_ids_of_users_have_quotas(terminal: Terminal, new_name: NewName) -> None:
    client_id = new_name()
    entity = ("--default-user", "--client-id", client_id)
    done = terminal.do("quota", "set", *entity, "--consumer-byte-rate", "5000")
    assert done.out == f"set quotas of user (default) with client-id {client_id}\n"
    (found,) = [
        quota for quota in terminal.do("quota", "list", "--json").json if quota["client_id"] == client_id
    ]
    assert (found["user"], found["consumer_byte_rate"]) == ("(default)", 5000)
    terminal.do("quota", "delete", *entity, "--yes")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--producer-byte-rate", "1"], "no entity is named"),
        (["--user", "alice"], "no quota is given"),
        (["--user", "alice", "--default-user", "--producer-byte-rate", "1"], "exclude each other"),
    ],
)
def test_a_quota_without_an_entity_or_a_value_is_wrong_usage(
    terminal: Terminal, arguments: list[str], sentence: str
) -> None:
    outcome = terminal.run("quota", "set", *arguments)
    assert outcome.code == 2
    assert sentence in outcome.err


def test_a_refusal_of_the_broker_is_shown(terminal: Terminal) -> None:
    outcome = terminal.run("quota", "set", "--user", "", "--producer-byte-rate", "1")
    assert outcome.code == 1
    assert "the broker did not set the quotas" in outcome.err
