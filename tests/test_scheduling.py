"""The scheduler of the suite names files that exist."""

from pathlib import Path

import pytest

from tests.scheduling import BY_FILE, LONG, LONG_WITH_SESSION, SPARK

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("prefix", [*SPARK, *LONG_WITH_SESSION, *LONG, *BY_FILE])
def test_a_listed_file_exists(prefix: str) -> None:
    assert (ROOT / prefix.partition("::")[0]).exists()
