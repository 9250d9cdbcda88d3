"""What a scanner found in values: for each field of the type, where its text lies and of which kind it is.

Scanners (JSON, CSV) write tokens, converters (numbers, times, text) read them: neither knows the other.
A token is three numbers in three arrays, never an object: its kind, and the start and stop of its text in the
bytes of all values. The tokens of a list are the first and the stop of its items instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

    Flags: TypeAlias = NDArray[np.uint8]
    Places: TypeAlias = NDArray[np.int32]

MISSING: Final = 0
NULL: Final = 1
STRING: Final = 2
ESCAPED: Final = 3  # a string with escapes: its text is not yet its value
INTEGER: Final = 4
FRACTION: Final = 5  # a number with a point or an exponent
TRUE: Final = 6
FALSE: Final = 7
OBJECT: Final = 8
ARRAY: Final = 9
BROKEN: Final = 10  # never stored: what stands there is no value at all


class Tokens(NamedTuple):
    """The tokens of one field, one for each of its rows or for each item of the list that it lies in.

    `rows` says which value each token belongs to. A converter that cannot be sure of a token sets the value's
    mark in `doubtful`: the reference parser then decides about the whole value.
    """

    data: Octets
    kinds: Flags
    starts: Places
    stops: Places
    rows: Places
    doubtful: Flags

    @property
    def present(self) -> NDArray[np.bool_]:
        """For each token whether it is something other than null."""
        return self.kinds > NULL
