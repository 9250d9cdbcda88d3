"""Small files by which the sources of a job, each a process of its own, and its driver tell each other news.

They are hints: what a repeated batch depends on is in Spark's journal. A file that is missing or torn says
nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class TimeHints:
    """A folder with one small document for each name."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Put the document in place of the one before."""
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".{name}.{os.getpid()}"
        aside.write_text(json.dumps(document), encoding="utf-8")
        aside.replace(self._folder / f"{name}.json")

    def read(self, name: str) -> dict[str, Any] | None:
        """The document of a name; None where there is none."""
        return _read(self._folder / f"{name}.json")

    def read_all(self, kind: str) -> dict[str, dict[str, Any]]:
        """The documents whose names begin with `kind` and a dot, by the rest of their names."""
        found = {path.name: _read(path) for path in sorted(self._folder.glob(f"{kind}.*.json"))}
        return {
            name.removeprefix(f"{kind}.").removesuffix(".json"): document
            for name, document in found.items()
            if document is not None
        }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
