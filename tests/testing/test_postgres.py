"""The PostgreSQL of tests and the demo."""

from pathlib import Path

import psycopg

from headrace.testing.postgres import PostgresServer

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


def _state(pid: int) -> str:
    """The letter that Linux has for a process; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"
