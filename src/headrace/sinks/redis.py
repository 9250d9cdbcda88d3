"""The output into Redis: a hash, a string or a member of a sorted set for each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.sinks.columns import check_columns
from headrace.sinks.redis_rows import Kind, RowCommands
from headrace.sinks.redis_target import RedisTarget
from headrace.sinks.template import Template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.sink import Place

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
    expire: str | None = None,
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
