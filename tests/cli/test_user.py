"""Users on the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.password import VARIABLE
from tests.cli.terminal import Terminal

NewName = Callable[[], str]


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    (tmp_path / "password").write_text("tea-and-cups\n")
    return str(tmp_path / "password")


def test_a_user_is_created_listed_and_deleted(
    terminal: Terminal, new_name: NewName, password_file: str
) -> None:
    user = new_name()
    created = terminal.do("user", "create", user, "--password-file", password_file)
    assert created.out == f"created user {user}\n"
    listed = terminal.do("user", "list", "--json").json
    assert {"user": user, "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]} in listed
    assert any(line.split()[0] == user for line in terminal.do("user", "list").lines)
    assert terminal.do("user", "delete", user, "--yes").out == f"deleted user {user}\n"
    assert user not in terminal.do("user", "list").out


def test_a_user_who_does_not_exist_cannot_be_deleted(terminal: Terminal, new_name: NewName) -> None:
    user = new_name()
    outcome = terminal.run("user", "delete", user, "--yes")
    assert outcome.code == 1
    assert f"user '{user}' does not exist" in outcome.err


def test_a_password_comes_from_the_environment_or_a_file_and_never_from_nothing(
    terminal: Terminal, new_name: NewName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = new_name()
    missing = terminal.run("user", "create", user)
    assert missing.code == 2
    assert "there is no password" in missing.err
    absent = terminal.run("user", "create", user, "--password-file", str(tmp_path / "absent"))
    assert "cannot be read" in absent.err
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in terminal.run("user", "create", user, "--password-file", str(tmp_path / "empty")).err
    monkeypatch.setenv(VARIABLE, "tea")
    terminal.do("user", "create", user)
    terminal.do("user", "delete", user, "--yes")
