"""Errors between a client and a broker, Kafka's error codes by how a client handles them, and retries.

Error codes are numbers here: commands import this module when they start, and kio is slow to import.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kio.schema.errors import ErrorCode

    from headrace.client.partition import TopicPartition


COORDINATOR_RETRIABLE: Final = frozenset(
    {
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        15,  # COORDINATOR_NOT_AVAILABLE
        16,  # NOT_COORDINATOR
        51,  # CONCURRENT_TRANSACTIONS
    }
)
"""Transient errors of coordinators: retry the request."""

LEADER_CHANGED: Final = frozenset(
    {
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        9,  # REPLICA_NOT_AVAILABLE
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
    }
)
"""Errors of a broker that does not lead the partition: refresh the metadata, and retry the request."""

RETRIABLE_IN_PLACE: Final = frozenset(
    {
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        51,  # CONCURRENT_TRANSACTIONS
        88,  # UNSTABLE_OFFSET_COMMIT
    }
)
"""Transient errors of the right broker: retry the request without a metadata refresh."""

OFFSETS_RETRIABLE: Final = COORDINATOR_RETRIABLE | {88}  # UNSTABLE_OFFSET_COMMIT
"""Transient errors of a group's offsets; an open transaction may be about to change them."""

PRODUCE_RETRIABLE: Final = (
    LEADER_CHANGED
    | COORDINATOR_RETRIABLE
    | {
        7,  # REQUEST_TIMED_OUT
        13,  # NETWORK_EXCEPTION
        # Also the response of Apache Kafka to concurrent first writes of several tasks.
        19,  # NOT_ENOUGH_REPLICAS
        20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        89,  # THROTTLING_QUOTA_EXCEEDED
    }
)
"""Errors after which the same batch is sent again."""

FENCED: Final = frozenset(
    {
        47,  # INVALID_PRODUCER_EPOCH
        90,  # PRODUCER_FENCED
    }
)
"""Another producer has the transactional id, or the coordinator aborted the transaction after its timeout."""

FIRST_BACKOFF_S = 0.005
MAX_BACKOFF_S = 0.2

Result = TypeVar("Result")


class BrokerUnreachable(HeadraceError):
    """No broker answers at the address, or the connection was lost."""


class UnsupportedApi(HeadraceError):
    """The broker does not serve this version of an API."""


class BadResponse(HeadraceError):
    """The response does not follow the Kafka protocol."""


class ConnectionShared(HeadraceError):
    """A second thread used a connection while another one used it."""


class RequestRefused(HeadraceError):
    """The broker refused a request with a Kafka error code."""

    def __init__(self, act: str, code: ErrorCode, detail: str | None = None) -> None:
        super().__init__(f"the broker refused to {act}: {detail or code.name} (Kafka error {code.value})")
        self.code = code


class UnknownTopic(HeadraceError):
    """The cluster does not have this topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the topic {topic!r} does not exist: check its name, or create it with "
            f"`headrace topic create {topic}`"
        )
        self.topic = topic


class UnknownPartition(HeadraceError):
    """The cluster does not have this partition."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            f"the cluster has no partition {partition.partition} of the topic {partition.topic!r}: "
            "the topic was deleted, or never created. Check its name, or create it."
        )
        self.partition = partition


class ReadTimeout(HeadraceError):
    """A partition returned nothing for the cluster's timeout."""


class OffsetOutOfRange(HeadraceError):
    """The partition does not hold an offset that was to be read: the reader missed records."""

    def __init__(self, partition: TopicPartition, offset: int, first: int, end: int) -> None:
        why = (
            "retention or a deletion removed them before they were read"
            if offset < first
            else "the topic was re-created, or a broker lost the end of its log"
        )
        super().__init__(
            f"offset {offset} of {partition} is out of range: the partition holds {first} to {end}; {why}. "
            "Start from an offset in this range, and retain records for longer than any pause of a reader."
        )
        self.partition = partition
        self.offset = offset
        self.first = first
        self.end = end


class ProducerFenced(HeadraceError):
    """Another producer has taken over the transactional id: this one cannot write any more."""


class AuthenticationFailed(HeadraceError):
    """The broker rejected the client's credentials, or a certificate is not trusted."""


class TokenUnavailable(HeadraceError):
    """No token for OAUTHBEARER could be obtained."""


def attempts(timeout_s: float, *, max_backoff_s: float = MAX_BACKOFF_S) -> Iterator[int]:
    """Yield the numbers of attempts, with an exponential and jittered backoff, until `timeout_s` have passed.

    At least one attempt is made. The caller leaves the loop when an attempt succeeds.
    """
    deadline = time.monotonic() + timeout_s
    backoff_s = FIRST_BACKOFF_S
    number = 1
    while True:
        yield number
        if time.monotonic() >= deadline:
            return
        time.sleep(backoff_s * random.uniform(0.5, 1.5))
        backoff_s = min(backoff_s * 2, max_backoff_s)
        number += 1


def retry(
    call: Callable[[], Result],
    *,
    timeout_s: float,
    retriable: Collection[int],
    on_error: Callable[[HeadraceError], None] | None = None,
    max_backoff_s: float = MAX_BACKOFF_S,
) -> Result:
    """Return the result of `call`, which is repeated after lost connections and `retriable` error codes.

    `on_error` gets each error before the next attempt. The last error is raised after `timeout_s`.
    """
    error: BrokerUnreachable | RequestRefused
    for _ in attempts(timeout_s, max_backoff_s=max_backoff_s):
        try:
            return call()
        except BrokerUnreachable as lost:
            error = lost
        except RequestRefused as refusal:
            if refusal.code not in retriable:
                raise
            error = refusal
        if on_error is not None:
            on_error(error)
    raise error
