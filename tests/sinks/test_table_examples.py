"""The examples in the docstrings of outputs into tables do what they say."""

import doctest
import importlib

import pytest

MODULES = ("postgres", "postgres_types", "rows", "sqlite", "sqlite_table")


@pytest.mark.parametrize("module", [*(f"sinks.{name}" for name in MODULES), "streams.outputs"])
def test_the_examples_of_a_module_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"headrace.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
