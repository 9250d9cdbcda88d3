"""Compiles the kernels before they are needed, so that no task of a job has to wait for them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa

from headrace.columns.aggregates import AggregateSpec
from headrace.columns.documents import RecordForm
from headrace.columns.encoding import Encoder
from headrace.columns.first_rows import FirstRowsKernel
from headrace.columns.header_columns import HeaderColumn
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.joining import JoinKernel, JoinState
from headrace.columns.key_hash import row_hashes
from headrace.columns.keyed import Times
from headrace.columns.record_decoder import RecordDecoder
from headrace.columns.session_windows import SessionAssigner
from headrace.columns.sliding import SlidingKernel
from headrace.columns.window_assigners import WindowKernelSettings

SPECS = tuple(
    AggregateSpec(name=f"{column}{kind}", kind=kind, column=column)
    for column in ("whole", "decimal")
    for kind in ("sum", "min")
)
"""All loops for both kinds of numbers; with max they are the same as with min."""


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


def prepare_windows() -> None:
    """Return when every loop is compiled and cached, so that no task of a job has to wait for it.

    That takes some seconds after an installation, and a moment ever after.
    """
    rows = pa.table({"at": pa.array([0], pa.timestamp("us", "UTC")), "whole": [1], "decimal": [1.0]})
    output = pa.schema([(spec.name, rows[spec.column or ""].type) for spec in SPECS])
    times = Times(-1, 1)
    slides = pa.schema([rows.schema.field("at"), *output])
    SlidingKernel(time="at", keys=(), specs=SPECS, size_us=1, output=slides)(rows, None, times)
    windows = pa.schema([("start", pa.int64()), ("end", pa.int64()), *output])
    settings = WindowKernelSettings(keys=(), specs=SPECS, output=windows)
    for assigner in (HoppingAssigner(size_us=1, every_us=1), SessionAssigner(gap_us=1)):
        partials = assigner.partial_aggregation("at", (), SPECS)(rows.to_batches(), times)
        assigner.kernel(settings)(pa.Table.from_batches(list(partials)), None, times)
    FirstRowsKernel(keys=("whole",), time="at", arrival="decimal", within_us=1)(rows, None, times)
    row_hashes(rows, ["whole"], np.zeros(2, np.uint64))
    _prepare_joins(rows["at"], times)


def _prepare_joins(at: pa.ChunkedArray, times: Times) -> None:
    join = JoinKernel(
        keys=(),
        columns=((), ()),
        keeps=(True, True),
        before_us=0,
        after_us=0,
        result=(),
        output=pa.schema([]),
    )
    at = pa.chunked_array([*at.chunks, *at.chunks])
    rows = pa.table({"side": pa.array([0, 1], pa.int8()), "code": [1, 1], "at": at})
    join(rows, JoinState(), times)
