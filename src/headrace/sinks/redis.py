"""Rows in Redis: a hash, a string or a member of a sorted set for each row.

A batch and its marker are one MULTI, and WATCH on the marker fences: a run that another one has overtaken
cannot write any more. The marker is the key `headrace:batch:<job>:<sink>`, with the generation and the number
of the batch. A hash replaces the previous one as a whole, so that no old field remains.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.redis_commands import (
    add_members,
    command,
    delete_keys,
    remove_members,
    write_hashes,
    write_strings,
)
from headrace.sinks.rows import joined, json_documents, last_of_each_key, texts_of
from headrace.sinks.sink import DELETED, Refused, Superseded, Unavailable, Unsuitable, check_columns
from headrace.sinks.template import Template, Unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from redis import Redis

    from headrace.durations import Duration
    from headrace.sinks.redis_commands import Member
    from headrace.sinks.sink import Place

Kind = Literal["hash", "string", "zset"]
KEY: Final = "key"
ROWS: Final = 10_000
"""Rows of which commands are made at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCommands:
    """What rows mean to Redis; of several rows with one key, or one member, the last one counts."""

    key: Template
    kind: Kind
    fields: tuple[str, ...]
    score: str
    member: Template | None
    expire_ms: int

    def of(self, rows: pa.Table) -> Iterable[bytes]:
        """The commands that apply the rows, made as they are taken; `Refused` if rows cannot be applied."""
        if not len(rows):
            return ()
        if self.member is not None:
            return self._sorted_sets(rows, self.member)
        keys = _texts(self.key, rows)
        last = last_of_each_key(pa.table({KEY: keys}), [KEY])
        is_gone = _deleted(rows).take(last)
        gone, kept = last.filter(is_gone), last.filter(pc.invert(is_gone))
        columns = self.fields or tuple(name for name in rows.column_names if name != DELETED)
        return chain(
            delete_keys(keys.take(gone).to_pylist()),
            self._writes(keys.take(kept), rows.select(list(columns)).take(kept)),
        )

    def sets(self, rows: pa.Table) -> dict[int, str]:
        """The sorted set of each row, where rows go to sorted sets."""
        return {} if self.member is None else dict(enumerate(_texts(self.key, rows).to_pylist()))

    def _writes(self, keys: pa.Array, rows: pa.Table) -> Iterator[bytes]:
        """Some rows at a time: Redis takes the ones before meanwhile."""
        write = self._strings if self.kind == "string" else self._hashes
        for start in range(0, len(rows), ROWS):
            yield from write(keys.slice(start, ROWS), rows.slice(start, ROWS))

    def _hashes(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        fields = {name: texts_of(rows[name]) for name in rows.column_names}
        return write_hashes(keys, fields, self.expire_ms)

    def _strings(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        documents = pa.array(json_documents(rows), pa.large_string(), size=len(rows))
        return write_strings(keys, documents, self.expire_ms)

    def _sorted_sets(self, rows: pa.Table, member: Template) -> Iterable[bytes]:
        names = zip(_texts(self.key, rows).to_pylist(), _texts(member, rows).to_pylist(), strict=True)
        last = {name: index for index, name in enumerate(names)}
        deleted = _deleted(rows).to_pylist()
        values = rows[self.score].to_pylist()
        kept: dict[Member, int] = {name: index for name, index in last.items() if not deleted[index]}
        refused = {
            index: f"{self.score} is {values[index]}, which is no score"
            for index in kept.values()
            if not _is_score(values[index])
        }
        if refused:
            raise Refused(refused)
        gone = remove_members(name for name in last if name not in kept)
        return chain(
            gone, add_members({name: float(values[at]) for name, at in kept.items()}, self.expire_ms)
        )


def _deleted(rows: pa.Table) -> pa.Array:
    """Of each row whether its key is to go."""
    if DELETED not in rows.column_names:
        return pa.repeat(pa.scalar(False), len(rows))
    return rows[DELETED].combine_chunks().fill_null(False)


def _texts(template: Template, rows: pa.Table) -> pa.Array:
    """The text of each row; those of which none can be made are refused."""
    names = list(template.columns)
    if template.parts and names and not any(rows[name].null_count for name in names):
        # What most templates are: Arrow puts the texts together.
        return joined([piece for text, name in template.parts for piece in (text, *_column(rows, name))])
    texts, refused = [], {}
    documents = rows.select(names).to_pylist() if names else [{}] * len(rows)
    for index, row in enumerate(documents):
        try:
            texts.append(template.text_of(row, complete=True))
        except Unfit as unfit:
            refused[index] = str(unfit)
    if refused:
        raise Refused(refused)
    return pa.array(texts, pa.large_string())


def _column(rows: pa.Table, name: str | None) -> list[pa.Array]:
    return [] if name is None else [texts_of(rows[name])]


def _is_score(value: Any) -> bool:
    """Whether it is a number; NaN, which no number equals, is none."""
    try:
        return bool(float(value) == float(value))
    except (TypeError, ValueError):
        return False


SCHEMES: Final = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSink:
    """Rows as keys of a Redis; made by `redis(…)`."""

    key: Template
    kind: Kind = "hash"
    fields: tuple[str, ...] = ()
    score: str = ""
    member: Template | None = None
    expire_ms: int = 0
    url: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What people call it."""
        member = "" if self.member is None else f" {self.member.text}"
        return f"redis {self.key.text}{member}"

    def open(self, place: Place) -> RedisTarget:
        """Connect to the server, if the rows have the columns that are needed."""
        names = place.schema.names
        for template in filter(None, (self.key, self.member)):
            template.check(names)
        check_columns(self.name, filter(None, (*self.fields, self.score)), names)
        commands = RowCommands(
            key=self.key,
            kind=self.kind,
            fields=self.fields,
            score=self.score,
            member=self.member,
            expire_ms=self.expire_ms,
        )
        return RedisTarget(self.name, place, commands, self.url)


def redis(
    key: str,
    *,
    kind: Kind = "hash",
    fields: Sequence[str] = (),
    score: str = "",
    member: str = "",
    expire: Duration | None = None,
    url: str | None = None,
) -> RedisSink:
    """Where a job's rows become keys of a Redis: `into=redis("revenue:{product}")`.

    `key` has columns in braces. A `hash` has the row's columns as fields (or those of `fields`), a `string`
    is the row as JSON, and in a `zset` the text `member` gets the column `score`. Keys go `expire` after
    their last change, if that is said. A row whose column `_deleted` is true deletes its key, or its member.
    Without `url` the address is that of HEADRACE_REDIS in the environment or `url` under `[redis]` in
    `headrace.toml`, or `redis://127.0.0.1:6379/0`.

    >>> redis("revenue:{product}", expire="1 day").name
    'redis revenue:{product}'
    """
    if kind not in get_args(Kind):
        raise Misuse(f"redis: kind {kind!r} is not known: use hash, string or zset.")
    wanted = (bool(score), bool(member)) if kind != "zset" else (not score, not member, bool(fields))
    if any(wanted):
        raise Misuse(
            'redis: a sorted set needs a score and a member, and nothing else does: redis("leaders", '
            'kind="zset", score="revenue", member="{product}").'
        )
    if url is not None and not url.startswith(SCHEMES):
        raise Misuse('redis: the address is no such thing: write url="redis://host:6379/0".')
    expire_ms = 0 if expire is None else milliseconds_of(expire, "expire")
    if expire is not None and not expire_ms:
        raise Misuse('redis: nothing can expire at once: write expire="1 day".')
    return RedisSink(
        key=Template(key, "key"),
        kind=kind,
        fields=tuple(fields),
        score=score,
        member=Template(member, "member") if member else None,
        expire_ms=expire_ms,
        url=url,
    )


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
