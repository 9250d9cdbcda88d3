import pytest

from headrace.protocol.batch import check_batch, read_header
from headrace.protocol.compression import GZIP, NONE
from headrace.protocol.records import NewRecord, decode_batch, encode_batch
from headrace.protocol.slices import OpenBatch


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_records_are_cut_out_with_their_offsets_times_and_headers(codec: int) -> None:
    records = [NewRecord(b"k%d" % n, b"v" * n, 1000 + n, (("h", b"%d" % n),)) for n in range(300)]
    whole = bytes(encode_batch(records, codec=codec, base_offset=1000))
    wanted = [1001, 1150, 1299]
    part = OpenBatch(whole).cut([*wanted, 5000])
    check_batch(memoryview(part), read_header(part))
    assert decode_batch(part) == [record for record in decode_batch(whole) if record.offset in wanted]
    assert read_header(part).last_offset == 1299


def test_what_was_cut_can_be_cut_again() -> None:
    records = [NewRecord(None, b"%d" % n, 1000 + n) for n in range(10)]
    whole = bytes(encode_batch(records, base_offset=50))
    part = OpenBatch(whole).cut([52, 55, 57])
    assert [(r.offset, r.value) for r in decode_batch(OpenBatch(part).cut([52, 57]))] == [
        (52, b"2"),
        (57, b"7"),
    ]
