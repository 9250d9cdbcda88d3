"""The context of the job that rows come from."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.folders import LocalFolder
from headrace.sinks.sink import SinkContext


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., SinkContext]:
    """Creates the context of a job whose rows have the schema of a table."""

    def make(rows: pa.Table, *, job: str = "shop.revenue", generation: int = 1) -> SinkContext:
        return SinkContext(
            job=job,
            generation=generation,
            schema=rows.schema,
            folder=LocalFolder(tmp_path / "outputs"),
            state=tmp_path,
        )

    return make
