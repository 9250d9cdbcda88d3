"""Kafka's codecs: what every client reads, and no more memory than the caller allows."""

import contextlib
import gzip
import struct
import subprocess
import sys

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.compression import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    XERIAL_HEADER,
    ZSTD,
    compress,
    decompress,
)
from headrace.protocol.errors import CorruptBatch

COMPRESSING = [GZIP, SNAPPY, LZ4, ZSTD]
MIB = 1024 * 1024

BOMB = """
import resource, sys
from headrace.protocol.compression import compress, decompress
from headrace.protocol.errors import CorruptBatch
bomb = compress({codec}, bytes({bomb_bytes}))
for line in open("/proc/self/status"):
    if line.startswith("VmSize"):
        held = int(line.split()[1]) * 1024
room = held + {room}
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    decompress({codec}, bomb, {limit})
except CorruptBatch:
    sys.exit(0)
sys.exit("the bomb was opened")
"""


@given(codec=st.sampled_from(sorted(CODECS)), data=st.binary(max_size=3000))
def test_what_is_compressed_comes_back(codec, data):
    assert decompress(codec, compress(codec, data), limit=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_taken(codec, kind):
    assert decompress(codec, kind(compress(codec, kind(b"abc" * 50_000)))) == b"abc" * 50_000


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_data_of_one_byte_more_than_the_limit_is_refused(codec):
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, b"0123456789" * 1000), limit=9_999)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_without_the_memory_that_it_asks_for(codec):
    script = BOMB.format(codec=codec, bomb_bytes=256 * MIB, limit=8 * MIB, room=48 * MIB)
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


@given(codec=st.sampled_from(COMPRESSING), data=st.binary(max_size=200))
def test_arbitrary_bytes_give_a_corrupt_batch_or_bounded_data(codec, data):
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, data, limit=1000)) <= 1000


@given(codec=st.sampled_from(COMPRESSING), position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_damaged_data_gives_a_corrupt_batch_or_bounded_data(codec, position, byte):
    data = bytearray(compress(codec, b"a stitch in time saves nine " * 20))
    data[position % len(data)] = byte
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, data, limit=1000)) <= 1000


def test_snappy_is_written_in_blocks_with_the_header_of_the_java_client():
    data = compress(SNAPPY, bytes(range(256)) * 300)
    assert data.startswith(XERIAL_HEADER)
    (length,) = struct.unpack_from(">i", data, len(XERIAL_HEADER))
    block = data[len(XERIAL_HEADER) + 4 :][:length]
    assert bytes(cramjam.snappy.decompress_raw(block)) == bytes(range(256)) * 128


def test_bare_snappy_as_librdkafka_writes_it_is_read():
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(b"hello" * 100))) == b"hello" * 100


def test_gzip_of_another_library_is_read():
    assert decompress(GZIP, gzip.compress(b"hello" * 100)) == b"hello" * 100


def test_blocks_of_lz4_do_not_depend_on_one_another_for_the_java_client_reads_no_others():
    flags = compress(LZ4, b"x" * 200_000)[4]
    assert flags & 0x20


def test_a_snappy_block_that_claims_gigabytes_is_refused():
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20)


def test_a_snappy_block_that_claims_more_than_its_bytes_can_hold_is_refused():
    with pytest.raises(CorruptBatch, match="cannot have"):
        decompress(SNAPPY, b"\x80\x80\x80\x08\x00", limit=64 * MIB)


@pytest.mark.parametrize("length", [-1, 100])
def test_a_snappy_block_longer_than_what_is_there_is_refused(length):
    with pytest.raises(CorruptBatch, match="are left"):
        decompress(SNAPPY, XERIAL_HEADER + struct.pack(">i", length) + b"\x00")


def test_many_snappy_blocks_count_together_against_the_limit():
    with pytest.raises(CorruptBatch, match="more than the 70000 bytes"):
        decompress(SNAPPY, compress(SNAPPY, bytes(100_000)), limit=70_000)


def test_a_zstd_frame_that_wants_a_window_of_a_gigabyte_is_refused():
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, 20 << 3]) + b"\x01\x00\x00"
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(ZSTD, frame, limit=16 * MIB)


def test_an_unknown_codec_is_refused_both_ways():
    with pytest.raises(CorruptBatch, match="codec 5"):
        compress(5, b"")
    with pytest.raises(CorruptBatch, match="codec 7"):
        decompress(7, b"")


def test_uncompressed_data_is_not_copied():
    data = memoryview(b"as it is")
    assert decompress(NONE, data) is data
