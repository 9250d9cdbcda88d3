"""Rows and keys as Python values."""

import doctest
import importlib
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from headrace.feeds.view_log import RowCodec, to_json


def schema(**kinds: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


@pytest.mark.parametrize("module", ["headrace.feeds.feed", "headrace.gateway.options"])
def test_the_examples_of_a_module_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_columns_have_the_types_of_the_schema() -> None:
    inner = schema(at="timestamp", n="long")
    codec = RowCodec(
        schema(
            id="long",
            at="timestamp",
            day="date",
            price="decimal(20,10)",
            share="double",
            blob="binary",
            inner=inner,
            days={"type": "array", "elementType": "date", "containsNull": True},
            by_id={"type": "map", "keyType": "integer", "valueType": "timestamp", "valueContainsNull": True},
            text="string",
        ),
        ["id"],
    )
    value = b"""{"id": 7, "at": "2026-01-01T10:00:00.000001Z", "day": "2026-01-02",
      "price": 1234567890.0123456789, "share": "NaN", "blob": "AP8=",
      "inner": {"at": "2026-01-01T10:00:00.000000Z", "n": null},
      "days": ["2026-01-02", null], "by_id": {"3": "2026-01-01T00:00:00.000000Z"}, "text": null}"""
    row = codec.row(value)
    assert math.isnan(row.pop("share"))
    assert row == {
        "id": 7,
        "at": datetime(2026, 1, 1, 10, 0, 0, 1, UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1234567890.0123456789"),
        "blob": b"\0\xff",
        "inner": {"at": datetime(2026, 1, 1, 10, tzinfo=UTC), "n": None},
        "days": [date(2026, 1, 2), None],
        "by_id": {3: datetime(2026, 1, 1, tzinfo=UTC)},
        "text": None,
    }
    assert codec.key_of(row) == {"id": 7} == codec.key(b"7")
    assert json.loads(json.dumps(row["at"], default=to_json)) == "2026-01-01T10:00:00.000001Z"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("string", b"7", "7"),
        ("string", b'{"k":', '{"k":'),
        ("string", b'{"k":null}', None),
        ("boolean", b"true", True),
        ("timestamp", b"2026-01-01 10:00:00", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("decimal(4,2)", b"1.50", Decimal("1.50")),
        ("binary", b"\xff", b"\xff"),
        (schema(at="date"), b'{"at":"2026-01-02"}', {"at": date(2026, 1, 2)}),
    ],
)
def test_the_only_column_of_a_key_is_its_text(kind: Any, key: bytes, value: Any) -> None:
    assert RowCodec(schema(k=kind), ["k"]).key(key) == {"k": value}


def test_several_columns_of_a_key_are_a_document() -> None:
    codec = RowCodec(schema(a="string", at="timestamp"), ["at", "a"])
    assert codec.key(b'{"at":"2026-01-01T10:00:00.000000Z","a":null}') == {
        "at": datetime(2026, 1, 1, 10, tzinfo=UTC),
        "a": None,
    }
