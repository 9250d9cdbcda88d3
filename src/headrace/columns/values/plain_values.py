"""Values that need no parsing: text, which must be UTF-8, and raw bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.columns.values.parser import Parsed
from headrace.columns.values.reference_reading import answer, with_answers
from headrace.columns.values.utf8 import decoded


class TextParser:
    """Parses values as UTF-8 text."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The texts; what is not UTF-8 is an error."""
        try:
            return Parsed(values.cast(pa.string()), None)
        except pa.ArrowInvalid:
            present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            answers = [answer(self, value.as_py()) for value in values if value.is_valid]
            return with_answers(pa.nulls(len(values), pa.string()), present, answers)

    def read(self, value: bytes) -> str:
        """One text, or `BadValue`."""
        return decoded(value)


class RawParser:
    """Gives values as they are."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The same bytes."""
        return Parsed(values, None)
