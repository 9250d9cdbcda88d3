"""One record of a key at a time: who waits behind whom."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class KeyOrder:
    """The records of each key in a row; only the first of a row may be in somebody's hands."""

    __slots__ = ("_key_of", "_rows")

    def __init__(self) -> None:
        self._rows: dict[bytes, deque[int]] = {}
        self._key_of: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._key_of)

    @property
    def offsets(self) -> Collection[int]:
        """The records that stand in rows."""
        return self._key_of.keys()

    @property
    def waiting(self) -> int:
        """How many records stand behind another one."""
        return len(self._key_of) - len(self._rows)

    def below(self, start: int) -> list[int]:
        """The records with offsets below `start`."""
        return [offset for offset in self._key_of if offset < start]

    def join(self, offset: int, key: bytes) -> bool:
        """Put a record at the end of its key's row; True when it is the first there."""
        self._key_of[offset] = key
        row = self._rows.setdefault(key, deque())
        row.append(offset)
        return len(row) == 1

    def leave(self, offset: int) -> int | None:
        """Take a record out of its row; gives the record that is first now, if it was not before."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return None
        row = self._rows[key]
        was_first = row[0] == offset
        row.remove(offset)
        if not row:
            del self._rows[key]
            return None
        return row[0] if was_first else None
