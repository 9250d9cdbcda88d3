"""The place of a job that rows come from."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.folders import LocalFolder
from headrace.sinks.sink import Place


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Place]:
    """Makes the place of a job whose rows are like those of a table."""

    def make(rows: pa.Table, *, job: str = "shop.revenue", generation: int = 1) -> Place:
        return Place(
            job=job,
            generation=generation,
            schema=rows.schema,
            folder=LocalFolder(tmp_path / "outputs"),
            state=tmp_path,
        )

    return make
