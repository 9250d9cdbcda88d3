"""The options of `format("headrace")`: Spark's own names for its Kafka source, and a few more.

Spark hands over option names in lower case, so every look-up here ignores case, and messages spell a name as
the documentation does. A name that nobody knows is an error with a suggestion: a misspelt
`maxOffsetPerTrigger` that did nothing would be found out only when a job is drowning.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

SPARK: Final = ("path", "checkpointLocation", "queryName", "outputMode")
"""What Spark itself puts among a source's or a sink's options."""

REFUSED_CLIENT_OPTIONS: Final = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys always arrive as binary: cast them with DataFrame operations",
    "kafka.value.deserializer": "values arrive as binary, or typed with valueFormat and valueSchema",
    "kafka.key.serializer": "make the key column string or binary with DataFrame operations",
    "kafka.value.serializer": "make the value column string or binary with DataFrame operations",
    "kafka.enable.auto.commit": "positions are kept in the checkpoint; name a kafka.group.id to publish them",
    "kafka.interceptor.classes": "interceptors could change records unseen",
    "kafka.transactional.id": "the plain sink writes at least once; jobs of headrace.App write exactly once",
}
"""Client options that contradict how Spark reads and writes, each with what to do instead."""


class Options:
    """The options of one source or sink, checked against the names that it knows."""

    def __init__(self, given: Mapping[str, str], *, known: Iterable[str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        self._known = {name.lower(): name for name in (*known, *SPARK)}
        for name in self._values:
            self._check(name)

    def text(self, name: str) -> str | None:
        """The option as it was written; nothing where it was not given."""
        return self._values.get(name.lower())

    def required(self, name: str, hint: str) -> str:
        """The option as it was written; an error where it was not given, or is empty."""
        value = (self.text(name) or "").strip()
        if not value:
            raise BadOption(f"the option {name} is missing: {hint}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """The option as true or false."""
        words = {"true": True, "false": False}
        return self.choice(name, words, default="true" if default else "false")

    def number(self, name: str, *, at_least: int = 1) -> int | None:
        """The option as a whole number; nothing where it was not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise BadOption(f"{name} is {value!r}: write a whole number of at least {at_least}")
        return number

    def choice(self, name: str, choices: Mapping[str, T], *, default: str) -> T:
        """What the option's word stands for."""
        word = (self.text(name) or default).strip().lower()
        if word not in choices:
            raise BadOption(f"{name} is {word!r}: write {' or '.join(choices)}")
        return choices[word]

    def client_options(self) -> dict[str, str]:
        """The options that begin with `kafka.`, without that beginning."""
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.")
        }

    def _check(self, name: str) -> None:
        if name in REFUSED_CLIENT_OPTIONS:
            raise BadOption(f"the option {name} is not supported: {REFUSED_CLIENT_OPTIONS[name]}")
        if name.startswith("kafka.") or name in self._known:
            return
        close = get_close_matches(name, self._known, n=1, cutoff=0.6)
        hint = f"did you mean {self._known[close[0]]}?" if close else "see docs/spark.md for what there is"
        raise BadOption(f'format("headrace") has no option {name!r}: {hint}')
