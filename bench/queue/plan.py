"""How many messages, how often."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds of a run, and the size of each; a short round warms each system up."""

    name: str
    rounds: int
    messages: int
    warm_up_messages: int
    rate: int
    """Messages a second while latencies are measured."""
    latency_messages: int
    message_bytes: int = 100
    consumers: tuple[int, ...] = (1, 4, 16)


FULL = Plan(name="full", rounds=2, messages=30_000, warm_up_messages=3_000, rate=200, latency_messages=800)
QUICK = Plan(name="quick", rounds=1, messages=2_000, warm_up_messages=200, rate=200, latency_messages=200)
