"""The examples in the client's docstrings are run."""

import doctest

from headrace.client import partition


def test_the_examples_hold() -> None:
    results = doctest.testmod(partition)
    assert results.attempted > 0
    assert not results.failed
