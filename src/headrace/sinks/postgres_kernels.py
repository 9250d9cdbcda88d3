"""The compiled loop that puts values where COPY's binary form wants them.

A tuple of that form is the number of its fields (two bytes), and for each field its size (four bytes, −1 for
null) and its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.columns.memory import copy_bytes
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.columns.blobs import Blobs
    from headrace.protocol.kernels import Octets

SIZE_BYTES: Final = 4


@borrowing
def write_field(values: Blobs, output: Octets, positions: NDArray[np.int64]) -> None:
    """Write the next field of each tuple at its position, which is moved on."""
    for row in range(len(positions)):
        size = values.sizes[row]
        position = positions[row]
        for index in range(SIZE_BYTES):
            output[position + index] = (size >> 8 * (SIZE_BYTES - 1 - index)) & 0xFF
        position += SIZE_BYTES
        if size > 0:
            copy_bytes(output, position, values.data, values.starts[row], size)
            position += size
        positions[row] = position
