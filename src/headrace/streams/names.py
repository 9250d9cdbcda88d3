"""Names of applications, jobs and topics: what Kafka allows in a topic, because they become parts of one."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import Misuse

LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")
LONGEST: Final = 200
"""Kafka's limit is 249; some of it is kept for what is added, such as `.dead`."""


def checked_name(name: str, what: str) -> str:
    """The name, if it is one.

    >>> checked_name("order_status", "job")
    'order_status'
    """
    if LEGAL.fullmatch(name) and len(name) <= LONGEST and name not in (".", ".."):
        return name
    raise Misuse(
        f"{name!r} cannot be the {what}'s name: use up to {LONGEST} letters, digits, dots, "
        "underscores and hyphens."
    )
