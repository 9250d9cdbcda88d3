"""Compiles the kernels before they are needed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from headrace.columns.documents import RecordForm
from headrace.columns.encoding import Encoder
from headrace.columns.header_columns import HeaderColumn
from headrace.columns.record_decoder import RecordDecoder


def prepare() -> None:
    """Return when every kernel is compiled and cached, so that no task of a job has to wait for it.

    That takes some seconds after an installation, and milliseconds later.
    """
    headers = pa.array([[{"key": "name", "value": b"value"}]])
    encoder = Encoder({"topic": 1}, topic="topic")
    encoder.encode(pa.record_batch({"key": ["key"], "value": ["value"], "headers": headers}))
    for encoded in encoder.flush():
        wanted = [HeaderColumn("name", "string"), HeaderColumn("number", "bigint")]
        RecordDecoder((encoded.topic, encoded.partition), 0, 1, headers=wanted).decode(encoded.batch)
    prepare_documents()


def prepare_documents() -> None:
    """Return when the kernels that write rows as JSON are compiled and cached."""
    values = {"text": ["text"], "bytes": [b"bytes"], "whole": [1], "fraction": [0.5], "flag": [True]}
    values |= {"time": [datetime.fromtimestamp(0, UTC)], "date": [date(1970, 1, 1)], "decimal": [Decimal(1)]}
    list(RecordForm(columns=tuple(values)).records([pa.record_batch(values)]))
