"""Kafka's compression codecs. The size of decompressed data is limited.

    0 none · 1 gzip · 2 snappy · 3 lz4 · 4 zstd

Compressed data is readable by every client. The Java client reads lz4 frames only with independent blocks,
and writes snappy in the framing of the xerial library (a header of 16 bytes, then blocks with their length);
librdkafka writes raw snappy. Both are read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

import cramjam

from headrace.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Bytes: TypeAlias = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODECS: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

RECORDS_LIMIT: Final = 128 * 1024 * 1024
"""The default limit of the decompressed records of one batch, in bytes."""

XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC = XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

_SNAPPY_MAX_RATIO = 64
"""The maximum compression ratio of snappy."""
MAX_RATIOS: Final = {GZIP: 1032, SNAPPY: _SNAPPY_MAX_RATIO, LZ4: 256, ZSTD: 32 * 1024}
"""The maximum compression ratios, which limit the number of records before a batch is decompressed. Two bits
of deflate repeat 258 bytes, a byte of an lz4 length 255; four bytes of zstd are 128 KiB."""
_FIRST_GUESS_RATIO = 4
_GROWTH = 8
_LZ4_LEVEL = 2
"""Four times as fast as the default of the library, and slightly larger."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_COMMON_WINDOW = 8 * 1024 * 1024
"""The window that every zstd decoder must support (RFC 8878); Kafka's clients use less."""


def compress(codec: int, data: Bytes) -> bytes:
    """Compress data so that every Kafka client can read it."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise CorruptBatch(_unknown(codec))


def decompress(codec: int, data: Bytes, limit: int = RECORDS_LIMIT) -> Bytes:
    """Decompress data; raises `CorruptBatch` if it is invalid or larger than `limit`.

    With codec 0 it returns `data` itself.
    """
    if codec == NONE:
        if len(data) > limit:
            raise CorruptBatch(_too_large(codec, limit))
        return data
    if codec == GZIP:
        return _decompress_into(GZIP, cramjam.gzip.decompress_into, data, limit)
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), limit)
    if codec == LZ4:
        return _decompress_into(LZ4, cramjam.lz4.decompress_into, data, limit)
    if codec == ZSTD:
        _check_zstd_window(data, limit)
        return _decompress_into(ZSTD, cramjam.zstd.decompress_into, data, limit)
    raise CorruptBatch(_unknown(codec))


def _decompress_into(
    codec: int, decompress_into: Callable[[Bytes, bytearray], int], data: Bytes, limit: int
) -> bytearray:
    """Decompress into buffers that grow up to `limit`: the library has no limit."""
    size = min(limit, max(4096, _FIRST_GUESS_RATIO * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if size >= limit:
                raise CorruptBatch(
                    f"{CODECS[codec]} records cannot be decompressed within {limit} bytes: {error}"
                ) from error
        else:
            del output[written:]
            return output
        del output
        size = min(limit, _GROWTH * size)


def _check_zstd_window(data: Bytes, limit: int) -> None:
    """Raise `CorruptBatch` for a frame whose window needs more memory than the limit."""
    header = bytes(data[:6])
    if len(header) < 6 or header[:4] != _ZSTD_MAGIC or header[4] & 0x20:
        return  # invalid, which the library reports, or a single segment without a window
    exponent, mantissa = header[5] >> 3, header[5] & 7
    base = 1 << (10 + exponent)
    if base + (base >> 3) * mantissa > max(limit, _ZSTD_COMMON_WINDOW):
        raise CorruptBatch(_too_large(ZSTD, limit))


def _compress_lz4(data: Bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_xerial(data: memoryview) -> bytes:
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes | bytearray:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _decompress_block(data, limit, 0)
    output = bytearray()
    for block in _xerial_blocks(data):
        output += _decompress_block(block, limit, len(output))
    return output


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        if start > len(data):
            raise CorruptBatch("snappy data ends within the length of a block")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position = start + length
        if length < 0 or position > len(data):
            raise CorruptBatch(f"snappy block of {length} bytes, and {len(data) - start} are left")
        yield data[start:position]


def _decompress_block(block: memoryview, limit: int, held: int) -> bytes:
    """Decompress a snappy block; `held` bytes of the limit are used already."""
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if held + claimed > limit:
            raise CorruptBatch(_too_large(SNAPPY, limit))
        if claimed > _SNAPPY_MAX_RATIO * len(block):
            raise CorruptBatch(f"snappy block of {len(block)} bytes cannot have {claimed} bytes of content")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy records cannot be decompressed: {error}") from error


def _unknown(codec: int) -> str:
    return f"compression codec {codec} is unknown: Kafka has 0 to 4 (none, gzip, snappy, lz4, zstd)"


def _too_large(codec: int, limit: int) -> str:
    return f"records compressed with {CODECS[codec]} take more than the {limit} bytes that a batch may hold"
