"""Keys of every type as bytes, from columns and from the keys of records."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.columns.key_hash import key_bytes
from headrace.errors import Misuse
from headrace.tables.definition import Definition
from headrace.tables.keys import RecordKeys

NOON = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)

KINDS: list[tuple[pa.DataType, Any, bytes]] = [
    (pa.int64(), -7, b"-7"),
    (pa.int32(), 7, b"7"),
    (pa.int64(), 7, b'{"k": 7}'),
    (pa.string(), "Zoë, {", "Zoë, {".encode()),
    (pa.binary(), b"\x00\xff", b"\x00\xff"),
    (pa.decimal128(10, 2), Decimal("12.30"), b"12.30"),
    (pa.timestamp("us", "UTC"), NOON, b"2026-01-01 12:00:00.25"),
    (pa.timestamp("us", "UTC"), NOON, b'{"k": "2026-01-01T12:00:00.250000Z"}'),
    (pa.date32(), date(2026, 1, 1), b"2026-01-01"),
    (pa.bool_(), True, b"true"),
]


def table(*kinds: pa.DataType) -> Definition:
    names = [f"k{index}" if index else "k" for index in range(len(kinds))]
    return Definition(
        topic="t", row_type=pa.struct(list(zip(names, kinds, strict=True))), key=tuple(names), keep_us=0
    )


@pytest.mark.parametrize(("kind", "value", "text"), KINDS)
def test_the_key_of_a_record_names_the_same_row_as_the_column(
    kind: pa.DataType, value: Any, text: bytes
) -> None:
    columns = key_bytes([pa.array([None, value], kind)])
    records = RecordKeys(table(kind)).read(pa.array([None, text], pa.binary()))
    assert records.to_pylist() == columns.to_pylist()
    assert columns.is_valid().to_pylist() == [False, True]


def test_several_columns_are_one_json_document() -> None:
    both = table(pa.string(), pa.int64())
    columns = key_bytes([pa.array(["a", "a", None]), pa.array([1, 11, 1])])
    texts = [b'{"k":"a","k1":1}', b'{"k1": 11, "k": "a"}', b'{"k1": 1}']
    assert RecordKeys(both).read(pa.array(texts)).to_pylist() == columns.to_pylist()
    assert columns[2].as_py() is None


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    keys = key_bytes([pa.array(["ab", "a"]), pa.array(["c", "bc"])]).to_pylist()
    assert keys[0] != keys[1]


def test_a_key_that_is_not_of_its_type_names_no_row() -> None:
    assert RecordKeys(table(pa.int64())).read(pa.array([b"seven", b"{", b""])).null_count == 3


def test_a_slice_of_a_column_has_the_keys_of_the_slice() -> None:
    column = pa.array([1, None, 3, 4])
    assert key_bytes([column.slice(2)]).to_pylist() == key_bytes([pa.array([3, 4])]).to_pylist()
    assert key_bytes([column.slice(1, 2)])[0].as_py() is None


def test_a_fraction_is_no_key() -> None:
    with pytest.raises(Misuse, match="'k' is double, and cannot be a key"):
        table(pa.float64())


def test_a_key_or_a_time_that_is_no_column_is_refused() -> None:
    row = pa.struct([("id", pa.int64())])
    with pytest.raises(Misuse, match="no column 'since'"):
        Definition(topic="t", row_type=row, key=("id",), valid_from="since", keep_us=0)
    with pytest.raises(Misuse, match="must name a column of type timestamp"):
        Definition(topic="t", row_type=row, key=("id",), valid_from="id", keep_us=0)
