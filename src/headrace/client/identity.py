"""Who writes: a producer id and its epoch, as a broker gives them out (InitProducerId)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.types import ProducerId, TransactionalId
from kio.static.primitive import i16, i32Timedelta

from headrace.client.codes import PASSING
from headrace.client.errors import RequestRefused

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection


class Identity(NamedTuple):
    """What is stamped into every batch of a writer: sequences start at 0 for each identity and partition."""

    producer_id: int
    epoch: int


NOBODY: Final = Identity(-1, -1)


def new_identity(cluster: Cluster) -> Identity:
    """An identity of one's own, for a writer without transactions whose batches are to be stored once."""

    def ask() -> Identity:
        return init_producer(cluster.any(), None, NOBODY, timeout_ms=60_000)

    return cluster.persist(ask, PASSING)


def init_producer(
    connection: Connection, transactional_id: str | None, identity: Identity, *, timeout_ms: int
) -> Identity:
    """The identity to write with from now on; `identity` is the one until now, where there is one."""
    request = InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
        producer_id=ProducerId(identity.producer_id),
        producer_epoch=i16(identity.epoch),
    )
    response = connection.ask(request, InitProducerIdResponse)
    if response.error_code is not ErrorCode.none:
        raise RequestRefused("give out a producer id", response.error_code)
    return Identity(response.producer_id, response.producer_epoch)
