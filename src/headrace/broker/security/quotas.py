"""Client quotas: which limits apply to a client, how its use is measured, and how long it is throttled.

An entity is a user, a client id, or both; each has a name or is the default of its kind. Of the entities that
fit a client the most specific one counts, for each limit on its own, in Kafka's order:

| | user | client id |
|---|---|---|
| 1 | name | name |
| 2 | name | default |
| 3 | name | |
| 4 | default | name |
| 5 | default | default |
| 6 | default | |
| 7 | | name |
| 8 | | default |

Clients share a limit if they are the same to the entity that counts: all clients of a user if it names no
client id. Use is measured as Kafka does it, over eleven samples of a second, of which the last is being
filled: a client may use up ten seconds of its limit at once, and then has to wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USER: Final = "user"
CLIENT_ID: Final = "client-id"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
WHOLE_NUMBERS: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})

SAMPLE_MS: Final = 1_000
"""`quota.window.size.seconds`."""
SAMPLES: Final = 11
"""`quota.window.num`."""
BURST_SECONDS: Final = SAMPLES - 1
MAX_REQUEST_THROTTLE_MS: Final = SAMPLE_MS
"""How long the percentage of request time throttles at most; rates of bytes have no limit, as in Kafka."""
MAX_METERS: Final = 10_000
"""Clients whose use is measured. Of more, the one that made no request for the longest time is forgotten."""


class Entity(NamedTuple):
    """What a quota is for. A part is None if it is not given, and `DEFAULT` for the default of its kind."""

    user: str | None = None
    client_id: str | None = None


DEFAULT: Final = ""
"""The default entity: real names are not empty."""


class RateMeter:
    """The rate of something per second, over the last ten to eleven seconds."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """When each sample began, and what was recorded in it."""

    def record(self, amount: float, now_ms: float) -> None:
        """Add to what is used."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS or now_ms < samples[-1][0]:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        while samples[0][0] <= now_ms - SAMPLES * SAMPLE_MS or samples[0][0] > now_ms:
            samples.popleft()

    def throttle_ms(self, limit: float, now_ms: float, more: float = 0.0) -> float:
        """How long nothing may be used for the rate to sink to the limit; 0 if it is not above it.

        `more` is what would be used in addition.
        """
        while self._samples and self._samples[0][0] <= now_ms - SAMPLES * SAMPLE_MS:
            self._samples.popleft()
        window_ms = self._window_ms(now_ms)
        rate = (sum(amount for _, amount in self._samples) + more) * 1000 / window_ms
        return max((rate - limit) / limit * window_ms, 0.0)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was used in the last samples, as of the last call of `throttle_ms`."""
        return not any(amount for _, amount in self._samples)

    def _window_ms(self, now_ms: float) -> float:
        """The time that is measured; time before the first sample counts as time without any use."""
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0.0
        full_samples = elapsed_ms // SAMPLE_MS
        return elapsed_ms + max(BURST_SECONDS - full_samples, 0) * SAMPLE_MS


class Limit(NamedTuple):
    """A limit of a client, and the meter that it shares with those who have the same."""

    value: float
    meter: RateMeter

    def charge(self, amount: float, now_ms: float) -> float:
        """Record what was used; returns how long the client is throttled, in milliseconds."""
        self.meter.record(amount, now_ms)
        return self.meter.throttle_ms(self.value, now_ms)

    def excess_ms(self, amount: float, now_ms: float) -> float:
        """How long the client would be throttled if it used this amount, which is not recorded."""
        return self.meter.throttle_ms(self.value, now_ms, amount)

    def admit(self, amount: float, now_ms: float) -> bool:
        """Record an amount if it does not exceed the limit, or if nothing else was used for ten seconds."""
        if self.excess_ms(amount, now_ms) > 0 and not self.meter.is_unused:
            return False
        self.meter.record(amount, now_ms)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits of a client; None where it has none."""

    produce: Limit | None
    fetch: Limit | None
    request: Limit | None


class Quotas:
    """All quotas of a broker."""

    def __init__(self, quotas: Mapping[Entity, Mapping[str, float]]) -> None:
        self._quotas = quotas
        """The live table of the store."""
        self._meters: OrderedDict[tuple[str, Entity], RateMeter] = OrderedDict()
        self._limits: dict[tuple[str, str], ClientLimits | None] = {}

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def changed(self) -> None:
        """Look up all limits again; what was measured still counts."""
        self._limits.clear()

    def limits(self, user: str, client_id: str) -> ClientLimits | None:
        """The limits of a client; None if it has none."""
        key = (user, client_id)
        try:
            return self._limits[key]
        except KeyError:
            if len(self._limits) >= MAX_METERS:
                self._limits.clear()
            found = self._limits[key] = self._find(user, client_id)
            return found

    def _find(self, user: str, client_id: str) -> ClientLimits | None:
        produce, fetch, request = (self._limit(key, user, client_id) for key in KEYS)
        if produce is fetch is request is None:
            return None
        return ClientLimits(produce=produce, fetch=fetch, request=request)

    def _limit(self, key: str, user: str, client_id: str) -> Limit | None:
        for entity in fitting_entities(user, client_id):
            value = self._quotas.get(entity, {}).get(key)
            if value is not None:
                shared = Entity(
                    None if entity.user is None else user, None if entity.client_id is None else client_id
                )
                return Limit(value, self._meter(key, shared))
        return None

    def _meter(self, key: str, shared: Entity) -> RateMeter:
        meter = self._meters.setdefault((key, shared), RateMeter())
        self._meters.move_to_end((key, shared))
        if len(self._meters) > MAX_METERS * len(KEYS):
            self._meters.popitem(last=False)
        return meter


def fitting_entities(user: str, client_id: str) -> Iterable[Entity]:
    """The entities that fit a client, the most specific first."""
    return (
        Entity(user, client_id),
        Entity(user, DEFAULT),
        Entity(user),
        Entity(DEFAULT, client_id),
        Entity(DEFAULT, DEFAULT),
        Entity(DEFAULT),
        Entity(client_id=client_id),
        Entity(client_id=DEFAULT),
    )
