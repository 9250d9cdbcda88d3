"""Loops are compiled by the preparation, in the types in which tasks call them."""

from pathlib import Path

from headrace.columns.key_hash import sip_hash
from headrace.tables import kernels
from headrace.tables.copy import TableCopy
from headrace.tables.preparation import prepare_tables
from tests.tables.models import USERS, Log, Record, cities, snapshot

LOOPS = [sip_hash, kernels.fill_buckets, kernels.find_versions, kernels.choose_newer]


def signatures() -> list[int]:
    return [len(loop.signatures) for loop in LOOPS]  # type: ignore[attr-defined]  # numba's own


def test_a_lookup_in_mapped_files_compiles_nothing_that_the_preparation_did_not(tmp_path: Path) -> None:
    prepare_tables()
    before = signatures()
    copy = TableCopy(tmp_path, USERS, Log([[Record(1, "Rome", 1), Record(1, "Oslo", 3)]]).read)
    assert cities(snapshot(copy.advance(0, {0: 2})), [1, 1], [2, 3]) == ["Rome", "Oslo"]
    assert signatures() == before
