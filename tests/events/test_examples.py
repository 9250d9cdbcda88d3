"""The examples in the docstrings do what they say, and the package is light."""

import doctest
import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["codecs", "event", "history"])
def test_the_examples_of_a_module_work(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"headrace.events.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_package_loads_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, headrace.events; print([n for n in ('pyspark', 'pyarrow', 'numba') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
