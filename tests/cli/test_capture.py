"""`headrace capture` as it is typed."""

import json
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from headrace.testing import EmbeddedBroker
from headrace.testing.postgres import PostgresServer
from tests.cli.terminal import Terminal, interrupt, wait_until


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The address of a database with a table of users."""
    with TemporaryDirectory(prefix="headrace-") as folder, PostgresServer(Path(folder)) as server:
        url = server.create_database("shop")
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
            connection.execute("INSERT INTO users VALUES (1, 'Anna')")
        yield url


@pytest.fixture
def here(headrace_broker: EmbeddedBroker, shop: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("HEADRACE_CAPTURE", shop)
    terminal = Terminal(headrace_broker.bootstrap)
    yield terminal
    terminal.run("capture", "drop", "shop", "--yes")
    terminal.close()


def test_a_database_is_captured_listed_and_dropped(here: Terminal, shop: str) -> None:
    outcome = here.do("capture", shop, "--tables", "public.users", "--once")
    assert outcome.lines[0] == "snapshot of public.users: 1 rows"
    assert "captured 1 records" in outcome.err
    assert here.do("capture", "list").lines[1].split() == ["shop", shop, "public.users"]
    assert here.do("capture", "list", "--json").json[0]["tables"] == ["public.users"]
    assert "table     public.users in shop.public.users" in here.do("capture", "status", "shop").lines
    status = here.do("capture", "status", "shop", "--json").json
    assert status["retained_wal_bytes"] >= 0
    assert here.do("capture", "stop", "shop").out == "capture shop was not running\n"
    assert here.run("capture", "drop", "shop").code == 2
    assert here.do("capture", "drop", "shop", "--yes").out == "capture shop dropped\n"
    assert here.run("capture", "status", "shop").code == 1


def test_the_address_and_the_salt_need_not_be_in_the_list_of_processes(
    here: Terminal, shop: str, tmp_path: Path
) -> None:
    salt = tmp_path / "salt"
    salt.write_text("pepper\n")
    here.do(
        *("capture", "start", "--tables", "users", "--once"),
        *("--hash", "users.name", "--salt-file", str(salt)),
    )
    reading = ("consume", "shop.public.users", "--from", "start", "--until", "end", "--json")
    event = json.loads(here.do(*reading).json["value"])
    assert event["after"]["name"] == sha256(b"pepperAnna").hexdigest()


def test_a_password_on_the_command_line_is_warned_of(here: Terminal) -> None:
    outcome = here.run("capture", "postgres://joe:s3cret@127.0.0.1:1/shop", "--tables", "t")
    assert "every user of this machine can read the password" in outcome.err
    assert "s3cret" not in outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_capture_runs_until_a_signal(here: Terminal, shop: str, number: int) -> None:
    process = here.start("capture", shop, "--tables", "users")
    assert process.stdout is not None
    assert process.stdout.readline() == b"snapshot of public.users: 1 rows\n"
    assert process.stdout.readline().startswith(b"streaming changes of postgres://")
    wait_until(
        lambda: here.do("capture", "status", "shop", "--json").json["is_running"], "the capture to run"
    )
    code, _, err = interrupt(process, number)
    assert (code, err) == (0, b"captured 1 records\n")


def test_what_is_wrong_is_explained(here: Terminal, shop: str) -> None:
    outcome = here.run("capture", shop, "--tables", "nothing")
    assert outcome.code == 2
    assert "there is no table public.nothing" in outcome.err
    assert here.run("capture", "mysql://h/d", "--tables", "t").code == 2
    assert here.run("capture", "postgres://u@127.0.0.1:1/d", "--tables", "t").code == 1
