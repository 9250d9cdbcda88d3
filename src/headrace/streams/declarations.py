"""What users declare: names of applications, jobs and topics, and schemas of streams and tables."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.streams.explanation import root_cause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")
"""What Kafka allows in the name of a topic: all names become parts of one."""
LONGEST: Final = 200
"""Kafka's limit is 249; some of it is kept for what is added, such as `.dead`."""
TimeUnit = Literal["auto", "s", "ms", "us", "ns"]
"""What numbers count that are read as timestamps; `auto` goes by their size."""


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


def read_schema(schema: str, what: str, place: str = "") -> StructType:
    """The columns of a schema; an error that names `what` it belongs to, and where it is declared."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    at = f" ({place})" if place else ""
    try:
        if schema.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(schema))
        struct = StructType.fromDDL(schema)
    except (PySparkException, ValueError, KeyError) as error:
        raise Misuse(f"{what}: {schema!r} is not a schema: {root_cause(error).message}{at}") from None
    if not isinstance(struct, StructType):
        raise Misuse(f'{what}: {schema!r} names no columns: write "id long, city string"{at}.')
    return struct
