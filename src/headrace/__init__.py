"""Headrace: a log that speaks the Kafka protocol, and stream processing on Spark, for Python.

>>> from headrace import App
>>> App("shop").name
'shop'
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.streams.app import App

__all__ = ["App"]


def __getattr__(name: str) -> Any:
    """What users import from here, brought when it is asked for: the broker starts without it."""
    if name == "App":
        from headrace.streams.app import App

        return App
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
