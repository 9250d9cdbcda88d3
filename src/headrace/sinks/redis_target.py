"""A Redis that takes a job's rows.

A batch and its mark are one MULTI, and WATCH on the mark fences: a run that another one has overtaken can
write nothing any more. The mark is the key `headrace:mark:<job>:<sink>`: the generation and the number of
the batch. A hash takes the place of the one before as a whole, so that no field of that is left over.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.settings import Settings
from headrace.sinks.errors import Refused, Superseded, Unavailable, Unsuitable
from headrace.sinks.redis_commands import command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from redis import Redis

    from headrace.sinks.redis_rows import RowCommands
    from headrace.sinks.sink import Place

USUAL_URL: Final = "redis://127.0.0.1:6379/0"
TIMEOUT_S: Final = 30.0


class Mark(NamedTuple):
    """What Redis knows of a job: its newest batch."""

    generation: int
    batch: int


class RedisTarget:
    """An open connection to a Redis."""

    def __init__(self, name: str, place: Place, commands: RowCommands, url: str | None) -> None:
        self._name = name
        self._place = place
        self._commands = commands
        self._mark_key = f"headrace:mark:{place.job}:{name.removeprefix('redis ')}".encode()
        self._client = _client(name, Settings.read().url("redis", url) or USUAL_URL)
        # Bytes are sent and answers read one by one, for which redis-py declares no types.
        self._connection: Any = None
        with self._explained():
            self._connection = self._client.connection_pool.get_connection()

    def newest(self) -> int | None:
        """The newest batch that this Redis holds."""
        with self._explained():
            mark = self._mark(self._ask(b"GET", self._mark_key))
        return None if mark is None else mark.batch

    def write(self, batch: int, rows: pa.Table) -> None:
        """Apply the rows and the mark in one MULTI."""
        commands = self._commands.of(rows)
        with self._explained():
            self._watch()
            self._check_sets(self._commands.sets(rows))
            before: bytes | None = self._ask(b"GET", self._mark_key)
            mark = self._mark(before)
            if mark is not None and mark.batch >= batch:
                self._ask(b"UNWATCH")
                return
            new = b"%d:%d" % (self._place.generation, batch)
            self._execute(chain(commands, [command(b"SET", self._mark_key, new)]), before)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.disconnect()
        self._client.close()

    def _ask(self, *parts: bytes) -> Any:
        self._send([command(*parts)])
        return self._connection.read_response()

    def _send(self, commands: list[bytes]) -> None:
        self._connection.send_packed_command(commands, check_health=False)

    def _watch(self) -> None:
        """Watch the mark; a connection that the server has closed, for it was idle, is made anew."""
        from redis.exceptions import ConnectionError as ConnectionLost

        try:
            self._ask(b"WATCH", self._mark_key)
        except ConnectionLost:
            self._connection.disconnect()
            self._ask(b"WATCH", self._mark_key)

    def _mark(self, value: bytes | None) -> Mark | None:
        """The mark, if it is one of this series of batches."""
        if value is None:
            return None
        mark = Mark(*map(int, value.split(b":")))
        if mark.generation > self._place.generation:
            raise Superseded(
                f"{self._name}: a later run of {self._place.job} (number {mark.generation}, and this is "
                f"{self._place.generation}) has written here: end this one. If the later one is gone for "
                f"good, delete the key {self._mark_key.decode()!r} in Redis."
            )
        return mark if mark.generation == self._place.generation else None

    def _check_sets(self, sets: dict[int, str]) -> None:
        """Refuse rows whose key is something else: Redis would go on behind them, and apply a part."""
        kinds = {key: self._ask(b"TYPE", key.encode()) for key in set(sets.values())}
        refused = {
            index: f"the key {key!r} is in Redis already, as a {kinds[key].decode()}"
            for index, key in sets.items()
            if kinds[key] not in (b"none", b"zset")
        }
        if refused:
            raise Refused(refused)

    def _execute(self, commands: Iterable[bytes], before: bytes | None) -> None:
        self._send([command(b"MULTI")])
        count = 0
        for some in commands:
            self._send([some])
            count += 1
        self._send([command(b"EXEC")])
        for _ in range(count + 1):
            self._connection.read_response()
        answers = self._connection.read_response()
        if answers is None:
            raise Unavailable(f"{self._name}: another run of the job wrote at the same moment.")
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:  # Redis goes on behind a command that fails: the batch is to be written again
            self._ask(*((b"DEL", self._mark_key) if before is None else (b"SET", self._mark_key, before)))
            raise failed[0]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as fault:
            self.close()
            raise Unavailable(f"{self._name}: {fault}") from fault


def _client(name: str, url: str) -> Redis:
    from redis import Redis

    try:
        return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    except ValueError:
        raise Unsuitable(
            f"{name}: the address in url=, HEADRACE_REDIS or headrace.toml is none of a Redis: write "
            "redis://host:6379/0."
        ) from None
