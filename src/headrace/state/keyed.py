"""A keyed operator in one partition: its kernel gets the groups that a batch concerns, and no others.

```text
rows of the batch ──▶ hashes of their keys ──┐
                                             ├──▶ groups ──▶ kernel ──▶ output
groups that are due by the watermark ────────┘                     └──▶ what the groups become
```
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.columns.key_hash import distinct_hashes, row_hashes
from headrace.state.groups import GroupStore, group_rows
from headrace.state.versions import BatchFigures, Versions

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.columns.keyed import Kernel, Times
    from headrace.state.files import StateFiles
    from headrace.state.groups import Numbers
    from headrace.state.versions import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedState:
    """The state of a keyed operator in one partition."""

    files: StateFiles
    keys: tuple[str, ...]
    """The columns of the key, in rows and in the state."""
    kernel: Kernel

    def advance(self, version: int, rows: pa.Table, times: Times) -> pa.Table:
        """The output of a batch, of which `version` is the number; its state is written when this returns."""
        begun = time.perf_counter()
        versions = Versions(self.files)
        store = self._opened(versions, version, rows.schema, times)
        touched = distinct_hashes(rows, self.keys, store.before.seed_words)
        found = store.look_up(touched, until_us=times.watermark_us, expired_us=times.late_us)
        spent = time.perf_counter() - begun
        result = self.kernel(rows, found.rows, times)
        figures = BatchFigures(self.kernel.deadline_rule, result.late, time.perf_counter() - spent)
        if result.state is found.rows and not found.has_due:
            store.keep(version, times.watermark_us, figures)
            return result.output
        groups = None if result.state is None else self._groups(result.state, store.before, times)
        store.replace(found, groups, version=version, watermark_us=times.watermark_us, figures=figures)
        return result.output

    def _opened(self, versions: Versions, version: int, schema: pa.Schema, times: Times) -> GroupStore:
        before = versions.read(version - 1)
        store = GroupStore(versions, before, lambda part: self.kernel.upgraded(part, schema))
        if before.deadline_rule == self.kernel.deadline_rule or not before.names:
            return store
        # An option changed on which the due times depend: they are computed again, once.
        late = times._replace(watermark_us=times.late_us)
        return store.rewrite(lambda rows, hashes: self._timed(rows, hashes, before, late), version)

    def _groups(self, state: pa.Table, before: Manifest, times: Times) -> pa.Table:
        return self._timed(state, row_hashes(state, self.keys, before.seed_words), before, times)

    def _timed(self, rows: pa.Table, hashes: Numbers, before: Manifest, times: Times) -> pa.Table:
        due_us, expires_us = self.kernel.deadlines(rows, times)
        after_us = max(times.watermark_us, before.watermark_us)
        return group_rows(rows, hashes, due_us, expires_us, after_us=after_us)
