"""Headers as columns: by name, typed, and with what is missing, doubled or nonsense."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.header_columns import HeaderColumn
from headrace.columns.record_decoder import RecordDecoder
from headrace.protocol.batch import CONTROL, TRANSACTIONAL
from headrace.protocol.compression import CODECS
from headrace.protocol.records import NewRecord, encode_batch
from tests.columns.batches import LAST_OFFSET, TIME, encode_plans, expected_rows, plain_rows, plans

PARTITION = ("orders", 3)


def cut(data: bytes, *wanted: HeaderColumn, columns: tuple[str, ...] = ("offset",)) -> pa.RecordBatch:
    rows = RecordDecoder(PARTITION, 0, LAST_OFFSET, columns=columns, headers=wanted).decode(data)
    rows.validate(full=True)
    return rows


def column(headers: list[tuple[str, bytes | None]], wanted: HeaderColumn) -> object:
    record = NewRecord(b"k", b"v", TIME, tuple(headers))
    (value,) = cut(bytes(encode_batch([record])), wanted).column(wanted.name).to_pylist()
    return value


@given(plans, st.lists(st.text(max_size=2), unique=True, max_size=4))
@settings(deadline=None, max_examples=50)
def test_a_header_is_the_last_of_its_name_that_the_plain_decoder_reads(plans, names):
    batches = encode_plans(plans)
    rows = cut(b"".join(batches), *(HeaderColumn(name, "binary") for name in names))
    for name in names:
        assert rows.column(rows.schema.get_field_index(name)).to_pylist() == [
            {header["key"]: header["value"] for header in row["headers"] or ()}.get(name)
            for row in expected_rows(batches)
        ]


@given(st.integers(-(2**65), 2**65) | st.integers(-(2**32), 2**32), st.sampled_from(["%d", "%+d", "%025d"]))
@settings(deadline=None, max_examples=100)
def test_a_number_is_read_as_far_as_its_column_can_hold_it(number, form):
    header = ("n", (form % number).encode())
    for kind, bits in (("int", 31), ("bigint", 63)):
        expected = number if -(2**bits) <= number < 2**bits else None
        assert column([header], HeaderColumn("n", kind)) == expected


@pytest.mark.parametrize("text", [b"", b"-", b"+", b"1 ", b"0x1", b"1.0", b"\xd9\xa3", b"--1", None])
def test_what_is_no_number_is_null(text):
    assert column([("n", text)], HeaderColumn("n", "bigint")) is None


def test_a_header_that_is_missing_or_has_no_value_is_null():
    for kind in ("string", "binary", "int", "bigint"):
        assert column([], HeaderColumn("a", kind)) is None
        assert column([("a", None)], HeaderColumn("a", kind)) is None
        assert column([("A", b"1"), ("aa", b"2"), ("", b"3")], HeaderColumn("a", kind)) is None


def test_of_several_headers_of_one_name_the_last_counts_even_if_it_is_null():
    assert column([("a", b"1"), ("b", b"2"), ("a", b"3")], HeaderColumn("a", "int")) == 3
    assert column([("a", b"1"), ("a", None)], HeaderColumn("a", "int")) is None


def test_text_that_is_not_utf_8_is_replaced():
    assert column([("a", b"gr\xfc\xdfe")], HeaderColumn("a", "string")) == "gr\ufffd\ufffde"
    assert column([("a", "grüße".encode())], HeaderColumn("a", "string")) == "grüße"


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_headers_come_out_of_compressed_batches_beside_other_columns(codec):
    records = [NewRecord(b"k%d" % n, b"v", TIME, (("n", b"%d" % n), ("t", b"x"))) for n in range(300)]
    wanted = (HeaderColumn("t", "string"), HeaderColumn("n", "int"))
    rows = cut(bytes(encode_batch(records, codec=codec)), *wanted, columns=("key", "offset"))
    assert rows.schema.names == ["key", "offset", "t", "n"]
    assert rows.column("n").to_pylist() == list(range(300))
    assert set(rows.column("t").to_pylist()) == {"x"}


@given(
    plans, st.lists(st.text(max_size=2), max_size=2, unique=True), st.lists(st.text(max_size=3), min_size=1)
)
@settings(deadline=None, max_examples=50)
def test_only_records_whose_headers_have_one_of_the_texts_are_rows(plans, names, texts):
    batches = encode_plans(plans)
    choice = dict.fromkeys(names, texts)
    rows = RecordDecoder(PARTITION, 0, LAST_OFFSET, where_headers=choice).decode(b"".join(batches))
    rows.validate(full=True)

    def is_wanted(row: dict[str, Any]) -> bool:
        last = {header["key"]: header["value"] for header in row["headers"] or ()}
        return all(last.get(name) in [text.encode() for text in texts] for name in names)

    assert plain_rows(rows) == [row for row in expected_rows(batches) if is_wanted(row)]


def test_markers_and_aborted_records_have_no_headers_to_give():
    stamped = {"attributes": TRANSACTIONAL, "producer_id": 7, "producer_epoch": 0}
    record = NewRecord(b"k", b"v", TIME, (("n", b"1"),))
    marker = NewRecord(b"\0\0\0\0", b"\0" * 6, TIME)
    data = encode_batch([record], **stamped)
    data += encode_batch([marker], base_offset=1, **{**stamped, "attributes": TRANSACTIONAL | CONTROL})
    data += encode_batch([NewRecord(b"k", b"v", TIME, (("n", b"2"),))], base_offset=2)
    decoder = RecordDecoder(PARTITION, 0, 3, columns=(), headers=[HeaderColumn("n", "int")])
    assert decoder.decode(bytes(data), [(7, 0)]).column("n").to_pylist() == [2]
