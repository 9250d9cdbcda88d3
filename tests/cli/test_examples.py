"""The examples in the docstrings do what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    ["headrace.cli.output", "headrace.cli.reader", "headrace.errors", "headrace.client.bootstrap"],
)
def test_the_examples_of_a_module_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
