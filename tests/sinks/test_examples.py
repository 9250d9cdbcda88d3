"""The examples in the docstrings of outputs."""

import doctest
import importlib
import pkgutil

import pytest

from headrace import sinks

MODULES = [f"{sinks.__name__}.{module.name}" for module in pkgutil.iter_modules(sinks.__path__)]
MODULES.append("headrace.streams.outputs")


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_hold(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
