"""Schemas as users write them: DDL, or the JSON of a StructType."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from headrace.errors import Misuse
from headrace.streams.explanation import root_cause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TimeUnit = Literal["auto", "s", "ms", "us", "ns"]
"""What numbers count that are read as timestamps; `auto` goes by their size."""


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
