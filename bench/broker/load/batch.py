"""A record batch (format 2) built from values, independent of the code under test."""

import struct
import time
from collections.abc import Sequence

from crc32c import crc32c

HEAD = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
BODY = struct.Struct(
    ">hiqqqhii"
)  # attributes … base sequence, count: what the checksum covers, with the records
MAGIC = 2


def build_batch(values: Sequence[bytes]) -> bytes:
    """The values as one uncompressed batch without keys, headers or a producer id."""
    now_ms = time.time_ns() // 1_000_000
    records = b"".join(_record(index, value) for index, value in enumerate(values))
    count = len(values)
    covered = BODY.pack(0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records
    # The length counts what follows it: leader epoch, magic, checksum and what that covers.
    return HEAD.pack(0, 4 + 1 + 4 + len(covered), -1, MAGIC) + struct.pack(">I", crc32c(covered)) + covered


def _record(index: int, value: bytes) -> bytes:
    no_key, no_headers = _varint(-1), _varint(0)
    body = b"\0" + _varint(0) + _varint(index) + no_key + _varint(len(value)) + value + no_headers
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """A signed number, zigzag-coded, seven bits a byte."""
    coded = (number << 1) ^ (number >> 63)
    coding = bytearray()
    while coded > 0x7F:
        coding.append(coded & 0x7F | 0x80)
        coded >>= 7
    coding.append(coded)
    return bytes(coding)
