"""Names on the command line of a benchmark, separated by commas."""

import argparse
from collections.abc import Callable, Iterable


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A type for argparse: the names that were given, all of them known.

    >>> names_of(["a", "b"])("b,a")
    ['b', 'a']
    """
    choices = list(known)

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)} is not known: choose of {', '.join(choices)}"
            )
        return names

    return parse
