"""What was sent: messages that left cannot be taken back, so each is written down as soon as it was answered.

```text
sent.json    {"batch": 41, "times": [1767225600.0]}                the newest batch of which all was sent
             {"batch": 42, "id": "9c0f…-0", "at": 1767225601.2}    and what was sent of the next one
             {"hold": 1767225700.0}                                the receiver asked to be left alone
```

A line is durable before the next message is sent. When all of a batch was sent, one line takes the
place of all. A crash can leave a message that was answered and not written down (as many as are under way at
once): it is sent again, with the same id. That is the one window in which a receiver can get a message twice.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.folders import Folder
    from headrace.sinks.sink import Place

FILE: Final = "sent.json"
LONGEST_HOLD_S: Final = 3600.0


class Sent:
    """The journal of one sink; `times` says of how many messages the times are kept, for a limit of rate."""

    def __init__(self, folder: Folder, *, times: int = 0) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._ids: dict[int, set[str]] = {}
        self.newest: int | None = None
        """The newest batch of which all was sent."""
        self.times: deque[float] = deque(maxlen=times)
        """When the last messages were sent, in seconds since 1970."""
        self.hold_until: float = 0.0
        """Until when the receiver wants to be left alone."""
        for entry in _entries(folder.read(FILE) or ""):
            self._take(entry)

    def ids(self, batch: int) -> set[str]:
        """The messages of a batch that were sent."""
        return self._ids.get(batch, set())

    def add(self, batch: int, identity: str) -> None:
        """Write down that a message was sent; it is durable when this returns."""
        self._append({"batch": batch, "id": identity, "at": time.time()})

    def hold(self, seconds: float) -> None:
        """Keep away from the receiver for so long, over restarts too."""
        self._append({"hold": time.time() + min(seconds, LONGEST_HOLD_S)})

    def finish(self, batch: int) -> None:
        """Write down that all of a batch was sent, and forget its messages."""
        self._folder.write(FILE, json.dumps({"batch": batch, "times": list(self.times)}))
        self._ids.clear()
        self.newest = batch

    def _append(self, entry: dict[str, Any]) -> None:
        # The line break comes first: what a crash has left of a line does not spoil the next one.
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


def identities(place: Place, batch: int, contents: Sequence[str], sent: Iterable[str]) -> list[str]:
    """An id for each message, the same whenever the batch comes again, in whatever order.

    It says the job, the generation, the batch and the content, and how many equal ones came before. Where
    some of equal messages were sent already, they come first: it does not matter if others were given up.
    """
    numbers: dict[str, set[int]] = {}
    for identity in sent:
        digest, _, number = identity.rpartition("-")
        numbers.setdefault(digest, set()).add(int(number))
    digests = [_digest([place.job, place.generation, batch, content]) for content in contents]
    chosen = {digest: _first(count, numbers.get(digest, set())) for digest, count in Counter(digests).items()}
    return [f"{digest}-{next(chosen[digest])}" for digest in digests]


def _first(count: int, sent: set[int]) -> Iterator[int]:
    """So many numbers: those that were sent, and then the lowest others."""
    others = (number for number in range(count + len(sent)) if number not in sent)
    return iter([*sorted(sent), *others][:count])


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:  # cut by a crash
            continue
        if isinstance(entry, dict):
            yield entry
