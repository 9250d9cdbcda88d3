"""Hashes of keys: the same for the same key, whether the values of a batch repeat or not."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columns.key_hash import distinct_hashes, row_hashes

SEED = np.array([1, 2], np.uint64)


@pytest.mark.parametrize(
    "values",
    [["a", None, "", "ä" * 40], [1, None, -5, 2**62], [0.0, None, float("nan"), 1.5], [True, False, None]],
)
def test_the_hash_of_a_key_does_not_depend_on_the_rows_beside_it(values: list[Any]) -> None:
    once, often = pa.table({"key": values}), pa.table({"key": values * 1_000})
    hashes = row_hashes(once, ["key"], SEED)
    assert len(set(hashes.tolist())) == len(values)
    assert (row_hashes(often, ["key"], SEED) == np.tile(hashes, 1_000)).all()
    for rows in (once, often):
        assert distinct_hashes(rows, ["key"], SEED).tolist() == sorted(hashes.tolist())


def test_values_that_are_equal_have_one_hash() -> None:
    zeros = pa.table({"key": [0.0, -0.0]})
    one, other = row_hashes(zeros, ["key"], SEED)
    assert one == other
