"""Durations as users write them, for everything that has to do with time."""

from headrace.durations import interval_of, milliseconds_of, seconds_of

__all__ = ["interval_of", "milliseconds_of", "seconds_of"]
