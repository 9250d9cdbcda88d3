"""Log records on standard error: as text for people, or as JSON for programs, one document per line."""

from __future__ import annotations

import logging
import time
from typing import Final

from headrace.printable import json_text, printable, printable_line

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
TEXT: Final = "%(asctime)s %(levelname)s %(message)s"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """A log record for people: its message on one line, control characters escaped, then an exception."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name that logging calls
        """The first line."""
        return printable_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the lines of an exception."""
        return printable(super().format(record))


class JsonFormatter(logging.Formatter):
    """A log record as a line of JSON: time, level, logger, message, fields of `extra`, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        document: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json_text(document, default=str)


def configure_logging(level: str = "warning", log_format: str = "text") -> None:
    """Write log records of this level and above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
