"""Whether a batch will be small enough for the driver to write it."""

from __future__ import annotations

from typing import Final

FIRST_RECORD_BYTES: Final = 100
"""What an input record is thought to become before the first batch has shown it."""


class Forecast:
    """How many bytes a batch will make, from what the last ones made of their input."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes_of_a_record = float(FIRST_RECORD_BYTES)

    def is_small(self, records: int) -> bool:
        """Whether the output of so many input records should fit into the driver's share."""
        return records * self._bytes_of_a_record <= self._limit

    def learn(self, records: int, size: int) -> None:
        """Remember what came of a batch; windows that close on no input say nothing."""
        if records:
            self._bytes_of_a_record = size / records
