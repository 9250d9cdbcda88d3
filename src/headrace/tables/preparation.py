"""The compiled loops of tables, made before they are needed."""

from __future__ import annotations

import pyarrow as pa

from headrace.columns.key_hash import key_bytes
from headrace.tables.definition import Definition
from headrace.tables.lookup import TableSnapshot, Versions
from headrace.tables.versions import merged_versions, needed_versions, version_schema, version_table


def prepare_tables() -> None:
    """Return when every loop is compiled and cached, so that no task of a job has to wait for it.

    That takes some seconds after an installation, and a moment ever after.
    """
    numbers = pa.array([1])
    keys = key_bytes([numbers])
    definition = Definition(topic="", row_type=pa.struct([("id", pa.int64())]), key=("id",), keep_us=0)
    versions = version_table(
        version_schema(definition),
        keys=keys,
        valid_from=numbers,
        partition=0,
        offsets=numbers,
        deleted=pa.array([False]),
        values=[],
    )
    merged = needed_versions(merged_versions(versions, versions), 0)
    TableSnapshot(Versions.of(merged), Versions.of(versions)).look_up(keys, None)
