"""The job of a client program and its outcome, as one line of JSON each."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load: `drain` empties a full queue, `latency` follows a slow producer."""

    act: str
    address: str
    topic: str
    consumers: int
    messages: int
    message_bytes: int
    rate: int = 0

    def to_json(self) -> str:
        """The job as a command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The job in a command-line argument."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The total duration, or the latency of each message in milliseconds."""

    seconds: float = 0.0
    latencies_ms: tuple[float, ...] = ()

    def to_json(self) -> str:
        """The outcome as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The outcome in a line."""
        values = json.loads(text)
        return cls(seconds=values["seconds"], latencies_ms=tuple(values["latencies_ms"]))
