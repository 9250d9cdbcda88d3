"""Records which messages were sent: each one as soon as the receiver has accepted it.

```text
sent.json    {"batch": 41, "times": [1767225600.0]}                the last batch that was sent completely
             {"batch": 42, "id": "9c0f…-0", "at": 1767225601.2}    a message of the next batch
             {"hold": 1767225700.0}                                the receiver asked to wait (Retry-After)
```

A line is durable before the next message is sent. When a batch is complete, one line replaces all its lines.
A crash can leave accepted messages without a line, at most as many as are in flight: they are sent again with
the same ids. This is the only case in which a receiver gets a message twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.folders import Folder
    from headrace.sinks.sink import SinkContext

FILE: Final = "sent.json"
LONGEST_HOLD_S: Final = 3600.0


class SentMessages:
    """The sent messages of one sink; keeps the times of the last `times` messages for a rate limit."""

    def __init__(self, folder: Folder, *, times: int = 0) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._ids: dict[int, set[str]] = {}
        self.newest: int | None = None
        """The last batch that was sent completely."""
        self.times: deque[float] = deque(maxlen=times)
        """The times of the last messages, in seconds since 1970."""
        self.hold_until: float = 0.0
        """Until when the receiver asked to wait."""
        for entry in _entries(folder.read(FILE) or ""):
            self._take(entry)

    def ids(self, batch: int) -> set[str]:
        """The ids of the sent messages of a batch."""
        return self._ids.get(batch, set())

    def add(self, batch: int, identity: str) -> None:
        """Record a sent message durably."""
        self._append({"batch": batch, "id": identity, "at": time.time()})

    def hold(self, seconds: float) -> None:
        """Record how long to wait for the receiver, also after a restart."""
        self._append({"hold": time.time() + min(seconds, LONGEST_HOLD_S)})

    def finish(self, batch: int) -> None:
        """Record that a batch is complete, and discard its messages."""
        self._folder.write(FILE, json.dumps({"batch": batch, "times": list(self.times)}))
        self._ids.clear()
        self.newest = batch

    def _append(self, entry: dict[str, Any]) -> None:
        # The line break comes first: a line that a crash has truncated does not affect the next one.
        self._folder.append(FILE, "\n" + json.dumps(entry))
        with self._lock:
            self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        if "hold" in entry:
            self.hold_until = entry["hold"]
        elif "id" in entry:
            self._ids.setdefault(entry["batch"], set()).add(entry["id"])
            self.times.append(entry["at"])
        else:
            self.newest = entry["batch"]
            self.times.extend(entry["times"])


class MessageIds:
    """Deterministic ids of the messages of a batch, independent of their order.

    An id is a hash of job, generation, batch and content, and a number that distinguishes equal messages.
    Numbers of messages that were sent already are assigned first.
    """

    def __init__(self, context: SinkContext, batch: int, sent: Iterable[str]) -> None:
        self._base = [context.job, context.generation, batch]
        self._sent: dict[str, set[int]] = {}
        for identity in sent:
            digest, _, number = identity.rpartition("-")
            self._sent.setdefault(digest, set()).add(int(number))
        self._numbers: dict[str, Iterator[int]] = {}

    def of(self, contents: Iterable[str]) -> list[str]:
        """The ids of the next messages."""
        return [self._next(_digest([*self._base, content])) for content in contents]

    def _next(self, digest: str) -> str:
        if digest not in self._numbers:
            sent = self._sent.get(digest, set())
            others = (number for number in itertools.count() if number not in sent)
            self._numbers[digest] = itertools.chain(sorted(sent), others)
        return f"{digest}-{next(self._numbers[digest])}"


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:  # truncated by a crash
            continue
        if isinstance(entry, dict):
            yield entry
