"""Headrace: a log that speaks the Kafka protocol, and stream processing on Spark, for Python.

>>> from headrace import App
>>> App("shop").name
'shop'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.errors import HeadraceError
    from headrace.feeds.errors import TokenGone
    from headrace.queues.queue import queue
    from headrace.sinks.email import email
    from headrace.sinks.postgres import postgres
    from headrace.sinks.redis import redis
    from headrace.sinks.search import search, search_index
    from headrace.sinks.sqlite import sqlite
    from headrace.sinks.webhook import webhook
    from headrace.streams.app import App
    from headrace.streams.clocks import clock_skew, correct_clock
    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream
    from headrace.streams.table import Table
    from headrace.streams.table_view import TableView
    from headrace.streams.windows import hopping, session, sliding, tumbling

__all__ = [
    "App",
    "HeadraceError",
    "Rows",
    "Stream",
    "Table",
    "TableView",
    "TokenGone",
    "clock_skew",
    "correct_clock",
    "email",
    "hopping",
    "postgres",
    "queue",
    "redis",
    "search",
    "search_index",
    "session",
    "sliding",
    "sqlite",
    "tumbling",
    "webhook",
]

_PLACES: Final = {
    "App": "streams.app",
    "HeadraceError": "errors",
    "Rows": "streams.rows",
    "Stream": "streams.stream",
    "Table": "streams.table",
    "TableView": "streams.table_view",
    "TokenGone": "feeds.errors",
    "clock_skew": "streams.clocks",
    "correct_clock": "streams.clocks",
    "email": "sinks.email",
    "hopping": "streams.windows",
    "postgres": "sinks.postgres",
    "queue": "queues.queue",
    "redis": "sinks.redis",
    "search": "sinks.search",
    "search_index": "sinks.search",
    "session": "streams.windows",
    "sliding": "streams.windows",
    "sqlite": "sinks.sqlite",
    "tumbling": "streams.windows",
    "webhook": "sinks.webhook",
}
"""The modules that users' names come from."""


def __getattr__(name: str) -> Any:
    """What users import from here, brought when it is asked for: the broker starts without it."""
    if name in _PLACES:
        return getattr(import_module(f"headrace.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names that users import from here, for completion and `help`."""
    return sorted({*globals(), *__all__})
