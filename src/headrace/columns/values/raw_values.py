"""The buffers of a binary column as arrays that compiled code reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.columns.values.tokens import Flags, Places
    from headrace.protocol.kernels import Octets


class RawValues(NamedTuple):
    """The bytes of all values, the places where they start and stop, and 1 for each that is not null."""

    data: Octets
    offsets: Places
    present: Flags


def raw_values(values: pa.BinaryArray) -> RawValues:
    """The arrays behind `values`, which are not copied."""
    _, offsets, data = values.buffers()
    count = len(values)
    places = (
        np.frombuffer(offsets, np.int32, count + 1, values.offset * 4) if count else np.zeros(1, np.int32)
    )
    places.flags.writeable = False
    if values.null_count:
        present = values.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    else:
        present = np.ones(count, np.uint8)
    return RawValues(octets(data if data is not None else b""), places, present)
