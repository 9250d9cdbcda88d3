"""The types of the fixtures that make topics and names."""

from collections.abc import Callable
from typing import Protocol


class NewTopic(Protocol):
    """Creates a topic and returns its name; settings are given with `_` for `.`."""

    def __call__(self, partitions: int = 1, **configs: str) -> str:
        """The name of the new topic, once the broker knows it."""
        ...


NewName = Callable[[str], str]
