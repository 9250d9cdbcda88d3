"""A first job in a fresh checkout, before the workers of the suite start theirs.

A first start of Spark writes an archive of its classes when it ends, and a first job compiles kernels for
later processes. Workers that all start first would each do so, and take a minute of processor time for it.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from headrace import App, tumbling
from headrace.spark.java import archive_options, find_java
from headrace.testing import run

ORDERS = [
    {"product": "tea", "amount": 3.5, "at": "2026-01-01T10:00:05Z"},
    {"product": "cup", "amount": 9.0, "at": "2026-01-01T10:01:30Z"},
]


def warm_start() -> None:
    """Run a job in another process, unless an earlier one has left its classes."""
    if _is_archive_missing():
        # It returns when Java has closed its output, which it does after writing the archive.
        subprocess.run([sys.executable, "-m", "tests.warm_start"], capture_output=True, check=False)


def _is_archive_missing() -> bool:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    options = archive_options(find_java(), Path(spec.origin).parent / "jars")
    return any(option.startswith("-XX:ArchiveClassesAtExit=") for option in options)


def run_job() -> None:
    """Run a windowed job over two orders."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    app = App("warm_start")
    orders = app.stream(
        "orders",
        "product string, amount double, at timestamp",
        event_time="at",
        watermark_delay="10 seconds",
    )

    @app.job(into=app.view("revenue", key=["window_start", "product"]))
    def revenue() -> object:
        return orders.window(tumbling("1 minute"), by="product").agg(F.sum("amount").alias("revenue"))

    run(revenue, {"orders": ORDERS})


if __name__ == "__main__":
    run_job()
