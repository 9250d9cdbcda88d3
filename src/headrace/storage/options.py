"""Settings under Kafka's names: what describes one, and what reads its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: its Kafka name and type, its default as text, and what its values mean."""

    name: str
    kind: str
    default: str
    doc: str
    parse: Callable[[str], Any]

    @property
    def attribute(self) -> str:
        """The name of the setting in Python."""
        return self.name.replace(".", "_")


def option(name: str, kind: str, default: object, parse: Callable[[str], Any], doc: str) -> Option:
    """One line of a table of settings."""
    return Option(name=name, kind=kind, default=str(default), doc=doc, parse=parse)


def integer(low: int, high: int = INT_MAX) -> Callable[[str], int]:
    """Reads whole numbers between two bounds."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"it must be between {low} and {high}")
        return value

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    """Reads words out of some."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return text

    return parse


def boolean(text: str) -> bool:
    """Reads true and false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"
