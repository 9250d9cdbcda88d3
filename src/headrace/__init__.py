"""Headrace: a log that speaks the Kafka protocol, and stream processing on Spark, for Python.

>>> from headrace import App
>>> App("shop").name
'shop'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.capture.settings import CaptureSettings
    from headrace.columns.user_aggregates import Groups
    from headrace.durations import Duration
    from headrace.errors import HeadraceError, Misuse
    from headrace.feeds.catalog import TokenExpired
    from headrace.feeds.feed import Change, ChangeFeed
    from headrace.queues.queue import queue
    from headrace.sinks.email import email
    from headrace.sinks.files import files
    from headrace.sinks.postgres import postgres
    from headrace.sinks.redis import redis
    from headrace.sinks.search import search, search_index
    from headrace.sinks.sink import Sink
    from headrace.sinks.sqlite import sqlite
    from headrace.sinks.webhook import webhook
    from headrace.streams.aggregator import Aggregator
    from headrace.streams.app import App
    from headrace.streams.clocks import Clock, clock_skew, correct_clock
    from headrace.streams.declarations import TimeUnit
    from headrace.streams.job import Job, OnError, WatermarkPolicy
    from headrace.streams.rows import OutputMode, Rows
    from headrace.streams.state import read_state
    from headrace.streams.stream import Stream
    from headrace.streams.table import Table
    from headrace.streams.table_view import TableView
    from headrace.streams.topic import Topic
    from headrace.streams.view import View
    from headrace.streams.window_operator import Emit, Windowed
    from headrace.streams.windows import Window, hopping, session, sliding, tumbling

__all__ = [
    "Aggregator",
    "App",
    "CaptureSettings",
    "Change",
    "ChangeFeed",
    "Clock",
    "Duration",
    "Emit",
    "Groups",
    "HeadraceError",
    "Job",
    "Misuse",
    "OnError",
    "OutputMode",
    "Rows",
    "Sink",
    "Stream",
    "Table",
    "TableView",
    "TimeUnit",
    "TokenExpired",
    "Topic",
    "View",
    "WatermarkPolicy",
    "Window",
    "Windowed",
    "clock_skew",
    "correct_clock",
    "email",
    "files",
    "hopping",
    "postgres",
    "queue",
    "read_state",
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
    "Aggregator": "streams.aggregator",
    "App": "streams.app",
    "CaptureSettings": "capture.settings",
    "Change": "feeds.feed",
    "ChangeFeed": "feeds.feed",
    "Clock": "streams.clocks",
    "Duration": "durations",
    "Emit": "streams.window_operator",
    "Groups": "columns.user_aggregates",
    "HeadraceError": "errors",
    "Job": "streams.job",
    "Misuse": "errors",
    "OnError": "streams.job",
    "OutputMode": "streams.rows",
    "Rows": "streams.rows",
    "Sink": "sinks.sink",
    "Stream": "streams.stream",
    "Table": "streams.table",
    "TableView": "streams.table_view",
    "TimeUnit": "streams.declarations",
    "TokenExpired": "feeds.catalog",
    "Topic": "streams.topic",
    "View": "streams.view",
    "WatermarkPolicy": "streams.job",
    "Window": "streams.windows",
    "Windowed": "streams.window_operator",
    "clock_skew": "streams.clocks",
    "correct_clock": "streams.clocks",
    "email": "sinks.email",
    "files": "sinks.files",
    "hopping": "streams.windows",
    "postgres": "sinks.postgres",
    "queue": "queues.queue",
    "read_state": "streams.state",
    "redis": "sinks.redis",
    "search": "sinks.search",
    "search_index": "sinks.search",
    "session": "streams.windows",
    "sliding": "streams.windows",
    "sqlite": "sinks.sqlite",
    "tumbling": "streams.windows",
    "webhook": "sinks.webhook",
}
"""The modules that define the exported names."""


if not TYPE_CHECKING:  # otherwise every name would be one for type checkers

    def __getattr__(name: str) -> Any:
        """Import exported names on first use: the broker starts without them."""
        if name in _PLACES:
            return getattr(import_module(f"headrace.{_PLACES[name]}"), name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The names that users import from here, for completion and `help`."""
    return sorted({*globals(), *__all__})
