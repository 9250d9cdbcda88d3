"""Headrace: a log that speaks the Kafka protocol, and stream processing on Spark, for Python.

>>> from headrace import App
>>> App("shop").name
'shop'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.queues.queue import queue
    from headrace.streams.app import App
    from headrace.streams.clocks import clock_skew, correct_clock
    from headrace.streams.correction import correct
    from headrace.streams.rows import Rows
    from headrace.streams.windows import hopping, session, sliding, tumbling

__all__ = [
    "App",
    "Rows",
    "clock_skew",
    "correct",
    "correct_clock",
    "hopping",
    "queue",
    "session",
    "sliding",
    "tumbling",
]

_PLACES: Final = {
    "App": "app",
    "Rows": "rows",
    "clock_skew": "clocks",
    "correct": "correction",
    "correct_clock": "clocks",
    "hopping": "windows",
    "session": "windows",
    "sliding": "windows",
    "tumbling": "windows",
}
"""The modules of `headrace.streams` that users' names come from."""


def __getattr__(name: str) -> Any:
    """What users import from here, brought when it is asked for: the broker starts without it."""
    if name == "queue":
        return import_module("headrace.queues.queue").queue
    if name in _PLACES:
        return getattr(import_module(f"headrace.streams.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
