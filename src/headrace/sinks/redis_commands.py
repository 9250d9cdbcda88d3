"""Commands for Redis as bytes, hundreds of rows in each.

Redis answers each command of a transaction twice, and reading answers is what a Python client takes its time
for. So rows go to Redis in scripts that take hundreds of them, and the bytes are put together here.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.rows import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


class Parts:
    """For each row a piece of a command."""

    def __init__(self, pieces: pa.LargeStringArray) -> None:
        _, offsets, self._data = pieces.buffers()
        self._offsets = np.frombuffer(offsets, np.int64)[pieces.offset :]

    def join(self, start: int, end: int) -> bytes:
        """The pieces of some rows, one after the other."""
        if self._data is None:
            return b""
        first, last = int(self._offsets[start]), int(self._offsets[end])
        pieces: bytes = self._data.slice(first, last - first).to_pybytes()
        return pieces


def as_part(text: str) -> str:
    r"""One text as a part.

    >>> as_part("tea")
    '$3\r\ntea\r\n'
    """
    return f"${len(text.encode())}\r\n{text}\r\n"


def as_parts(texts: pa.LargeStringArray, *, after: str = "") -> pa.LargeStringArray:
    r"""Each text as a part, behind a text that is the same for all; nulls stay nulls.

    >>> as_parts(pa.array(["tea", None], pa.large_string()), after="+").to_pylist()
    ['+$3\r\ntea\r\n', None]
    """
    lengths = pc.binary_length(texts).cast(pa.large_string())
    return joined([f"{after}$", lengths, "\r\n", texts, "\r\n"])


KEYS: Final = 500
"""Keys in one command."""

WRITE_HASHES: Final = b"""
redis.call('DEL', unpack(KEYS))
local at = 2
for k = 1, #KEYS do
  local count = tonumber(ARGV[at])
  if count > 0 then redis.call('HSET', KEYS[k], unpack(ARGV, at + 1, at + count)) end
  if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[k], ARGV[1]) end
  at = at + count + 1
end
return #KEYS
"""
WRITE_STRINGS: Final = b"""
for k = 1, #KEYS do
  redis.call('SET', KEYS[k], ARGV[k + 1])
  if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[k], ARGV[1]) end
end
return #KEYS
"""

Member = tuple[str, str]
"""A sorted set, and a member of it."""


def command(*parts: bytes) -> bytes:
    r"""A command as Redis reads it.

    >>> command(b"GET", b"tea")
    b'*2\r\n$3\r\nGET\r\n$3\r\ntea\r\n'
    """
    return b"*%d\r\n" % len(parts) + b"".join(map(_part, parts))


def write_hashes(keys: pa.Array, fields: Mapping[str, pa.Array], expire_ms: int) -> Iterator[bytes]:
    """Put hashes in the place of what is there; a value that is null is no field."""
    counts = np.zeros(len(keys), np.int64)
    pairs: list[pa.Array | str] = []
    for name, values in fields.items():
        counts += 2 * values.is_valid().to_numpy(zero_copy_only=False)
        pairs.append(pc.fill_null(as_parts(values, after=as_part(name)), ""))
    lengths = pa.array(counts).cast(pa.large_string())
    yield from _scripts(WRITE_HASHES, keys, joined([as_parts(lengths), *pairs]), counts + 1, expire_ms)


def write_strings(keys: pa.Array, strings: pa.Array, expire_ms: int) -> Iterator[bytes]:
    """Put strings in the place of what is there."""
    ones = np.ones(len(keys), np.int64)
    yield from _scripts(WRITE_STRINGS, keys, as_parts(strings), ones, expire_ms)


def delete_keys(keys: Iterable[str]) -> Iterator[bytes]:
    """Delete keys."""
    for some in _chunks(keys):
        yield command(b"DEL", *(key.encode() for key in some))


def add_members(scores: Mapping[Member, float], expire_ms: int) -> Iterator[bytes]:
    """Give members of sorted sets their scores."""
    for key, members in _by_key(scores).items():
        for some in _chunks(members):
            pairs = [part for member in some for part in (b"%r" % scores[key, member], member.encode())]
            yield command(b"ZADD", key.encode(), *pairs)
        if expire_ms:
            yield command(b"PEXPIRE", key.encode(), b"%d" % expire_ms)


def remove_members(members: Iterable[Member]) -> Iterator[bytes]:
    """Take members out of sorted sets."""
    for key, names in _by_key(members).items():
        for some in _chunks(names):
            yield command(b"ZREM", key.encode(), *(name.encode() for name in some))


def _scripts(
    script: bytes, keys: pa.Array, arguments: pa.Array, counts: NDArray[np.int64], expire_ms: int
) -> Iterator[bytes]:
    """A script for each few hundred keys; `counts` says of how many parts the arguments of each are."""
    key_parts, argument_parts = Parts(as_parts(keys)), Parts(arguments)
    for start in range(0, len(keys), KEYS):
        end = min(start + KEYS, len(keys))
        # The whole text each time: a transaction would not survive a script that Redis has forgotten.
        beginning = [b"EVAL", script, b"%d" % (end - start)]
        expiry = b"%d" % expire_ms
        count = len(beginning) + (end - start) + 1 + int(counts[start:end].sum())
        yield b"".join(
            [
                b"*%d\r\n" % count,
                *map(_part, beginning),
                key_parts.join(start, end),
                _part(expiry),
                argument_parts.join(start, end),
            ]
        )


def _part(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)


def _by_key(members: Iterable[Member]) -> dict[str, list[str]]:
    sets: dict[str, list[str]] = {}
    for key, member in members:
        sets.setdefault(key, []).append(member)
    return sets


def _chunks(items: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(items)
    while some := list(islice(rest, KEYS)):
        yield some
