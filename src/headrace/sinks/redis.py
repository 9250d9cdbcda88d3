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
from headrace.sinks.rows import concat_texts, format_texts, json_documents, last_of_each_key
from headrace.sinks.sink import (
    DELETED,
    IncompatibleTarget,
    RowsRejected,
    TargetUnavailable,
    WriterFenced,
    require_columns,
)
from headrace.sinks.template import Template, TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from redis import Redis

    from headrace.durations import Duration
    from headrace.sinks.redis_commands import Member
    from headrace.sinks.sink import SinkContext
    from headrace.sinks.staging import StagedBatch

Kind = Literal["hash", "string", "zset"]
KEY: Final = "key"
ROWS: Final = 10_000
"""The number of rows that are encoded at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCommands:
    """Encodes rows as commands; of rows with one key, or one member, the last one counts."""

    key: Template
    kind: Kind
    fields: tuple[str, ...]
    score: str
    member: Template | None
    expire_ms: int

    def commands(self, rows: pa.Table) -> Iterable[bytes]:
        """Yield the commands that write the rows; raises `RowsRejected` for invalid rows."""
        if not len(rows):
            return ()
        if self.member is not None:
            return self._sorted_sets(rows, self.member)
        keys = _texts(self.key, rows)
        last = last_of_each_key(pa.table({KEY: keys}), [KEY])
        is_deleted = _deleted(rows).take(last)
        deleted_rows, kept = last.filter(is_deleted), last.filter(pc.invert(is_deleted))
        columns = self.fields or tuple(name for name in rows.column_names if name != DELETED)
        return chain(
            delete_keys(keys.take(deleted_rows).to_pylist()),
            self._writes(keys.take(kept), rows.select(list(columns)).take(kept)),
        )

    def sets(self, rows: pa.Table) -> dict[int, str]:
        """The sorted set of each row; empty for other kinds."""
        return {} if self.member is None else dict(enumerate(_texts(self.key, rows).to_pylist()))

    def _writes(self, keys: pa.Array, rows: pa.Table) -> Iterator[bytes]:
        """Encode some rows at a time, while Redis executes the previous ones."""
        write = self._strings if self.kind == "string" else self._hashes
        for start in range(0, len(rows), ROWS):
            yield from write(keys.slice(start, ROWS), rows.slice(start, ROWS))

    def _hashes(self, keys: pa.Array, rows: pa.Table) -> Iterable[bytes]:
        fields = {name: format_texts(rows[name]) for name in rows.column_names}
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
        rejected = {
            index: f"{self.score} is {values[index]}, which is not a score"
            for index in kept.values()
            if not _is_score(values[index])
        }
        if rejected:
            raise RowsRejected(rejected)
        deleted_rows = remove_members(name for name in last if name not in kept)
        return chain(
            deleted_rows, add_members({name: float(values[at]) for name, at in kept.items()}, self.expire_ms)
        )


def _deleted(rows: pa.Table) -> pa.Array:
    """Whether each row is a delete."""
    if DELETED not in rows.column_names:
        return pa.repeat(pa.scalar(False), len(rows))
    return rows[DELETED].combine_chunks().fill_null(False)


def _texts(template: Template, rows: pa.Table) -> pa.Array:
    """The rendered template for each row; raises `RowsRejected` for rows that do not fit."""
    names = list(template.columns)
    if template.parts and names and not any(rows[name].null_count for name in names):
        # The usual case: Arrow concatenates the columns.
        return concat_texts(
            [piece for text, name in template.parts for piece in (text, *_column(rows, name))]
        )
    texts, rejected = [], {}
    documents = rows.select(names).to_pylist() if names else [{}] * len(rows)
    for index, row in enumerate(documents):
        try:
            texts.append(template.render(row, complete=True))
        except TemplateError as invalid:
            rejected[index] = str(invalid)
    if rejected:
        raise RowsRejected(rejected)
    return pa.array(texts, pa.large_string())


def _column(rows: pa.Table, name: str | None) -> list[pa.Array]:
    return [] if name is None else [format_texts(rows[name])]


def _is_score(value: Any) -> bool:
    """Whether it is a number other than NaN."""
    try:
        return bool(float(value) == float(value))
    except (TypeError, ValueError):
        return False


SCHEMES: Final = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSink:
    """Rows as keys in Redis; created by `redis(…)`."""

    key: Template
    kind: Kind = "hash"
    fields: tuple[str, ...] = ()
    score: str = ""
    member: Template | None = None
    expire_ms: int = 0
    url: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name for display."""
        member = "" if self.member is None else f" {self.member.text}"
        return f"redis {self.key.text}{member}"

    def open(self, context: SinkContext) -> RedisWriter:
        """Check the columns of the rows, and connect."""
        names = context.schema.names
        for template in filter(None, (self.key, self.member)):
            template.check(names)
        require_columns(self.name, filter(None, (*self.fields, self.score)), names)
        commands = RowCommands(
            key=self.key,
            kind=self.kind,
            fields=self.fields,
            score=self.score,
            member=self.member,
            expire_ms=self.expire_ms,
        )
        return RedisWriter(self.name, context, commands, self.url)


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
    """Keys in Redis as an output of a job: `into=redis("revenue:{product}")`.

    `key` is a template with columns in braces. A `hash` has the row's columns as fields (or those in
    `fields`), a `string` is the row as JSON, and in a `zset` the template `member` gets the score of the
    column `score`. Keys expire `expire` after their last change. A row with `_deleted` deletes its key or
    member. Without `url`, the server is that of HEADRACE_REDIS in the environment, `url` under `[redis]` in
    `headrace.toml`, or `redis://127.0.0.1:6379/0`.

    >>> redis("revenue:{product}", expire="1 day").name
    'redis revenue:{product}'
    """
    if kind not in get_args(Kind):
        raise Misuse(f"redis: kind {kind!r} is unknown: use hash, string or zset.")
    wanted = (bool(score), bool(member)) if kind != "zset" else (not score, not member, bool(fields))
    if any(wanted):
        raise Misuse(
            'redis: score and member are for kind="zset", which needs both and no fields: redis("leaders", '
            'kind="zset", score="revenue", member="{product}").'
        )
    if url is not None and not url.startswith(SCHEMES):
        raise Misuse('redis: the URL is invalid: write url="redis://host:6379/0".')
    expire_ms = 0 if expire is None else milliseconds_of(expire, "expire")
    if expire is not None and not expire_ms:
        raise Misuse('redis: expire must be longer than zero: write expire="1 day".')
    return RedisSink(
        key=Template(key, "key"),
        kind=kind,
        fields=tuple(fields),
        score=score,
        member=Template(member, "member") if member else None,
        expire_ms=expire_ms,
        url=url,
    )


DEFAULT_URL: Final = "redis://127.0.0.1:6379/0"
TIMEOUT_S: Final = 30.0


class BatchMarker(NamedTuple):
    """The last batch of a job in Redis."""

    generation: int
    batch: int


class RedisWriter:
    """An open connection to Redis."""

    def __init__(self, name: str, context: SinkContext, commands: RowCommands, url: str | None) -> None:
        self._name = name
        self._context = context
        self._commands = commands
        self._marker_key = f"headrace:batch:{context.job}:{name.removeprefix('redis ')}".encode()
        self._client = _client(name, Settings.read().url("redis", url) or DEFAULT_URL)
        # Encoded commands are sent, and replies read one by one; redis-py has no types for that.
        self._connection: Any = None
        with self._translated_errors():
            self._connection = self._client.connection_pool.get_connection()

    def last_batch(self) -> int | None:
        """The last batch in Redis, or None."""
        with self._translated_errors():
            marker = self._parse_marker(self._ask(b"GET", self._marker_key))
        return None if marker is None else marker.batch

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Write the rows and the batch marker in one MULTI."""
        with self._translated_errors():
            self._watch()
            before: bytes | None = self._ask(b"GET", self._marker_key)
            marker = self._parse_marker(before)
            if marker is not None and marker.batch >= batch:
                self._ask(b"UNWATCH")
                return
            parts = self._encoded(staged)
            new = b"%d:%d" % (self._context.generation, batch)
            self._execute(chain(chain.from_iterable(parts), [command(b"SET", self._marker_key, new)]), before)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.disconnect()
        self._client.close()

    def _ask(self, *parts: bytes) -> Any:
        self._send([command(*parts)])
        return self._connection.read_response()

    def _send(self, commands: list[bytes]) -> None:
        self._connection.send_packed_command(commands, check_health=False)

    def _watch(self) -> None:
        """Watch the marker; reconnects if the server has closed an idle connection."""
        from redis.exceptions import ConnectionError as ConnectionLost

        try:
            self._ask(b"WATCH", self._marker_key)
        except ConnectionLost:
            self._connection.disconnect()
            self._ask(b"WATCH", self._marker_key)

    def _parse_marker(self, value: bytes | None) -> BatchMarker | None:
        """The marker, if it has this generation; raises `WriterFenced` for a later one."""
        if value is None:
            return None
        marker = BatchMarker(*map(int, value.split(b":")))
        if marker.generation > self._context.generation:
            raise WriterFenced(
                f"{self._name}: a later run of {self._context.job} (generation {marker.generation}, this is "
                f"{self._context.generation}) has written here: stop this run. If the later one was deleted, "
                f"delete the key {self._marker_key.decode()!r} in Redis."
            )
        return marker if marker.generation == self._context.generation else None

    def _encoded(self, staged: StagedBatch) -> Iterable[Iterable[bytes]]:
        """The commands of each chunk; raises `RowsRejected` before Redis gets any of them.

        A batch of several chunks is read twice, so that only one of them is in memory.
        """
        chunks = list(staged)
        rejected: dict[int, str] = {}
        for chunk in chunks:
            rows = chunk.read()
            try:
                commands = self._commands.commands(rows)
                self._check_sets(self._commands.sets(rows))
            except RowsRejected as fault:
                rejected |= chunk.by_ordinal(fault.rows)
        if rejected:
            raise RowsRejected(rejected)
        return [commands] if len(chunks) == 1 else (self._commands.commands(each.read()) for each in chunks)

    def _check_sets(self, sets: dict[int, str]) -> None:
        """Reject rows whose key has another type: Redis would apply only a part of the transaction."""
        kinds = {key: self._ask(b"TYPE", key.encode()) for key in set(sets.values())}
        rejected = {
            index: f"the key {key!r} exists in Redis as a {kinds[key].decode()}"
            for index, key in sets.items()
            if kinds[key] not in (b"none", b"zset")
        }
        if rejected:
            raise RowsRejected(rejected)

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
            raise TargetUnavailable(f"{self._name}: another run of the job wrote concurrently.")
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:  # Redis does not roll back after a failed command: the batch must be repeated
            self._ask(*((b"DEL", self._marker_key) if before is None else (b"SET", self._marker_key, before)))
            raise failed[0]

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except (RedisError, OSError) as fault:
            self.close()
            raise TargetUnavailable(f"{self._name}: {fault}") from fault


def _client(name: str, url: str) -> Redis:
    from redis import Redis

    try:
        return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    except ValueError:
        raise IncompatibleTarget(
            f"{name}: the URL in url=, HEADRACE_REDIS or headrace.toml is invalid: write redis://host:6379/0."
        ) from None
