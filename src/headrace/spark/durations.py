"""Durations as Spark's options write them: `500ms`, `30s`, `15m`, `2h`."""

from __future__ import annotations

import re
from typing import Final

from headrace.spark.errors import BadOption

SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)", re.IGNORECASE)


def read_duration_s(option: str, text: str) -> float:
    """The seconds in `text`.

    >>> read_duration_s("maxTriggerDelay", "15m")
    900
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadOption(f"{option} is {text!r}: write a number and ms, s, m, h or d, for example 30s")
    return int(match[1]) * SECONDS[match[2].lower()]
