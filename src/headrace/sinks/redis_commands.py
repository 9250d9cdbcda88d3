"""Encodes rows as Redis commands (RESP), hundreds of rows in each command.

Redis replies twice to each command of a transaction, and a Python client spends most of its time reading
replies. So rows are written by scripts that take hundreds of rows, and Arrow encodes them column by column.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.rows import concat_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


class RespParts:
    """An encoded part of a command for each row."""

    def __init__(self, pieces: pa.LargeStringArray) -> None:
        _, offsets, self._data = pieces.buffers()
        self._offsets = np.frombuffer(offsets, np.int64)[pieces.offset :]

    def join(self, start: int, end: int) -> bytes:
        """The concatenated parts of a range of rows."""
        if self._data is None:
            return b""
        first, last = int(self._offsets[start]), int(self._offsets[end])
        pieces: bytes = self._data.slice(first, last - first).to_pybytes()
        return pieces


def resp_part(text: str) -> str:
    r"""A string as a RESP bulk string.

    >>> resp_part("tea")
    '$3\r\ntea\r\n'
    """
    return f"${len(text.encode())}\r\n{text}\r\n"


def resp_parts(texts: pa.LargeStringArray, *, after: str = "") -> pa.LargeStringArray:
    r"""Each string as a RESP bulk string after a constant prefix; nulls stay null.

    >>> resp_parts(pa.array(["tea", None], pa.large_string()), after="+").to_pylist()
    ['+$3\r\ntea\r\n', None]
    """
    lengths = pc.binary_length(texts).cast(pa.large_string())
    return concat_texts([f"{after}$", lengths, "\r\n", texts, "\r\n"])


KEYS: Final = 500
"""The number of keys in one command."""

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
"""A sorted set and one of its members."""


def command(*parts: bytes) -> bytes:
    r"""A command in RESP.

    >>> command(b"GET", b"tea")
    b'*2\r\n$3\r\nGET\r\n$3\r\ntea\r\n'
    """
    return b"*%d\r\n" % len(parts) + b"".join(map(_part, parts))


def write_hashes(keys: pa.Array, fields: Mapping[str, pa.Array], expire_ms: int) -> Iterator[bytes]:
    """Replace hashes; null values are not stored."""
    counts = np.zeros(len(keys), np.int64)
    pairs: list[pa.Array | str] = []
    for name, values in fields.items():
        counts += 2 * values.is_valid().to_numpy(zero_copy_only=False)
        pairs.append(pc.fill_null(resp_parts(values, after=resp_part(name)), ""))
    lengths = pa.array(counts).cast(pa.large_string())
    yield from _scripts(
        WRITE_HASHES, keys, concat_texts([resp_parts(lengths), *pairs]), counts + 1, expire_ms
    )


def write_strings(keys: pa.Array, strings: pa.Array, expire_ms: int) -> Iterator[bytes]:
    """Replace strings."""
    ones = np.ones(len(keys), np.int64)
    yield from _scripts(WRITE_STRINGS, keys, resp_parts(strings), ones, expire_ms)


def delete_keys(keys: Iterable[str]) -> Iterator[bytes]:
    """Delete keys."""
    for some in _chunks(keys):
        yield command(b"DEL", *(key.encode() for key in some))


def add_members(scores: Mapping[Member, float], expire_ms: int) -> Iterator[bytes]:
    """Set the scores of members of sorted sets."""
    for key, members in _by_key(scores).items():
        for some in _chunks(members):
            pairs = [part for member in some for part in (b"%r" % scores[key, member], member.encode())]
            yield command(b"ZADD", key.encode(), *pairs)
        if expire_ms:
            yield command(b"PEXPIRE", key.encode(), b"%d" % expire_ms)


def remove_members(members: Iterable[Member]) -> Iterator[bytes]:
    """Remove members from sorted sets."""
    for key, names in _by_key(members).items():
        for some in _chunks(names):
            yield command(b"ZREM", key.encode(), *(name.encode() for name in some))


def _scripts(
    script: bytes, keys: pa.Array, arguments: pa.Array, counts: NDArray[np.int64], expire_ms: int
) -> Iterator[bytes]:
    """A script for each chunk of keys; `counts` is the number of arguments of each key."""
    key_parts, argument_parts = RespParts(resp_parts(keys)), RespParts(arguments)
    for start in range(0, len(keys), KEYS):
        end = min(start + KEYS, len(keys))
        # EVAL, not EVALSHA: a script that Redis has evicted would fail the transaction.
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
