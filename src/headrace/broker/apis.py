"""The table of APIs: which Kafka requests are served, in which versions, and by which handler.

ApiVersions is derived from this table. Produce, Fetch, ShareFetch and ShareAcknowledge get the frame itself;
all others get kio's entity and return a mapping that is encoded for the version of the request.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.handlers import (
    acls,
    client_quotas,
    client_telemetry,
    cluster,
    configs,
    fetch,
    group_admin,
    group_membership,
    log_offsets,
    offsets,
    produce,
    sasl,
    scram_credentials,
    share_fetch,
    share_groups,
    topics,
    transaction_admin,
    transactions,
)
from headrace.broker.request import RequestContext
from headrace.protocol.errors import ProtocolError
from headrace.protocol.requests import (
    API_VERSIONS,
    RequestHeader,
    is_flexible,
    read_request,
    read_request_header,
    request_steps,
)
from headrace.protocol.responses import response_steps, write_response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection

PRODUCE: Final = 0
FETCH: Final = 1
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
TELEMETRY: Final = frozenset({71, 72})
"""APIs for the metrics of clients, which only a broker that serves metrics lists."""
BY_PEER: Final = frozenset({SHARE_FETCH, SHARE_ACKNOWLEDGE})
"""APIs other than Fetch with sessions, which belong to a connection."""
MAX_ADMIN_BYTES: Final = 8 * 2**20
"""The largest request that carries no records."""

Response = bytes | list[object] | None


class Api(NamedTuple):
    """One API: the lowest and highest version that are served, and the handler."""

    low: int
    high: int
    handle: Callable[..., Any]


def _api(module: Any) -> Api:
    low, high = module.VERSIONS
    return Api(low, high, module.handle)


APIS: Final[Mapping[int, Api]] = {
    PRODUCE: _api(produce),
    FETCH: _api(fetch),
    2: Api(1, 11, log_offsets.list_offsets),
    3: Api(0, 13, cluster.metadata),
    8: Api(2, 10, offsets.offset_commit),
    9: Api(1, 10, offsets.offset_fetch),
    10: Api(0, 6, cluster.find_coordinator),
    11: Api(0, 9, group_membership.join_group),
    12: Api(0, 4, group_membership.heartbeat),
    13: Api(0, 5, group_membership.leave_group),
    14: Api(0, 5, group_membership.sync_group),
    15: Api(0, 6, group_admin.describe_groups),
    16: Api(0, 5, group_admin.list_groups),
    17: Api(*sasl.HANDSHAKE_VERSIONS, sasl.handshake),
    API_VERSIONS: Api(0, 4, cluster.api_versions),
    19: Api(2, 7, topics.create_topics),
    20: Api(1, 6, topics.delete_topics),
    21: Api(0, 2, topics.delete_records),
    22: Api(0, 5, transactions.init_producer_id),
    23: Api(2, 4, log_offsets.offset_for_leader_epoch),
    24: Api(0, 5, transactions.add_partitions_to_txn),
    25: Api(0, 4, transactions.add_offsets_to_txn),
    26: Api(0, 5, transactions.end_txn),
    27: Api(1, 2, transaction_admin.write_txn_markers),
    28: Api(0, 5, transactions.txn_offset_commit),
    29: Api(*acls.DESCRIBE_VERSIONS, acls.describe),
    30: Api(*acls.CREATE_VERSIONS, acls.create),
    31: Api(*acls.DELETE_VERSIONS, acls.delete),
    32: Api(1, 4, configs.describe),
    33: Api(0, 2, configs.alter),
    35: Api(1, 5, cluster.describe_log_dirs),
    36: Api(*sasl.AUTHENTICATE_VERSIONS, sasl.authenticate),
    37: Api(0, 3, topics.create_partitions),
    42: Api(0, 2, group_admin.delete_groups),
    44: Api(0, 1, configs.alter_incrementally),
    47: Api(0, 0, offsets.offset_delete),
    48: Api(*client_quotas.DESCRIBE_VERSIONS, client_quotas.describe),
    49: Api(*client_quotas.ALTER_VERSIONS, client_quotas.alter),
    50: Api(*scram_credentials.DESCRIBE_VERSIONS, scram_credentials.describe),
    51: Api(*scram_credentials.ALTER_VERSIONS, scram_credentials.alter),
    60: Api(0, 2, cluster.describe_cluster),
    61: Api(0, 0, transaction_admin.describe_producers),
    65: Api(0, 0, transaction_admin.describe_transactions),
    66: Api(0, 2, transaction_admin.list_transactions),
    71: Api(0, 0, client_telemetry.get_subscriptions),
    72: Api(0, 0, client_telemetry.push),
    74: Api(0, 1, configs.list_resources),
    75: Api(0, 0, cluster.describe_topic_partitions),
    76: Api(1, 1, share_groups.share_group_heartbeat),
    77: Api(1, 1, share_groups.share_group_describe),
    SHARE_FETCH: Api(1, 2, share_fetch.share_fetch),
    SHARE_ACKNOWLEDGE: Api(1, 2, share_fetch.share_acknowledge),
    90: Api(0, 1, share_groups.describe_offsets),
    91: Api(0, 0, share_groups.alter_offsets),
    92: Api(0, 0, share_groups.delete_offsets),
}

SERVED: Final[Mapping[int, tuple[int, int]]] = {
    # librdkafka breaks when Produce begins above 0 (KAFKA-18659); versions below 3 are refused nevertheless.
    key: (0 if key == PRODUCE else api.low, api.high)
    for key, api in APIS.items()
}
"""The versions that ApiVersions lists."""


SMALL_FRAME_BYTES: Final = 2048
"""A request of up to this size has too few items to be read in steps."""


def handle_request(
    broker: Broker, frame: memoryview, peer: Connection, quota: fetch.FetchQuota | None = None
) -> Response | Awaitable[Response | asyncio.Future[list[object]]]:
    """The response to one request; None when the client wants none. `peer` is the connection.

    A client with quotas has a `quota`.

    The frame must stay as it is while the response waits for a `TimeSliceFuture`, and no longer.
    """
    header = read_request_header(frame, has_tagged_header)
    api = APIS.get(header.api_key)
    if api is None or not api.low <= header.version <= api.high:
        return _refuse_version(broker, header)
    if header.api_key == PRODUCE:
        produced: Response | Awaitable[Response] = api.handle(broker, frame, header, peer.access)
        return produced
    if header.api_key == FETCH:
        fetched: Response | Awaitable[Response] = api.handle(broker, frame, header, peer, quota)
        return fetched
    if header.api_key in BY_PEER:
        taken: Response | Awaitable[Response] = api.handle(broker, frame, header, peer)
        return taken
    if len(frame) > MAX_ADMIN_BYTES:
        raise ProtocolError(f"a request of {len(frame)} bytes: API {header.api_key} takes {MAX_ADMIN_BYTES}")
    return _serve(broker, api, frame, header, peer)


async def _serve(
    broker: Broker, api: Api, frame: memoryview, header: RequestHeader, peer: Connection
) -> bytes:
    time_slice = broker.scheduler.time_slice()
    context = RequestContext(
        api_key=header.api_key,
        version=header.version,
        client_id=header.client_id,
        client_host=peer.host,
        endpoint=peer.endpoint,
        authentication=peer.authentication,
        access=peer.access,
        time_slice=time_slice,
    )
    try:
        if len(frame) <= SMALL_FRAME_BYTES:
            request = read_request(frame, header)
        else:
            request = await time_slice.run(request_steps(frame, header))
        body = api.handle(broker, request, context)
        if inspect.isawaitable(body):
            body = await body
        broker.requests.count_errors(header.api_key, body)
        return await time_slice.run(
            response_steps(header.api_key, header.version, header.correlation_id, body)
        )
    finally:
        time_slice.release()


def has_tagged_header(api_key: int, version: int) -> bool:
    """Whether the header of a request that is served has tagged fields."""
    api = APIS.get(api_key)
    return api is not None and api.low <= version <= api.high and is_flexible(api_key, version)


def _refuse_version(broker: Broker, header: RequestHeader) -> bytes:
    """Answer an unknown ApiVersions version with the served ranges; other requests close the connection."""
    if header.api_key == API_VERSIONS:
        body = cluster.unsupported_api_versions(broker)
        return write_response(API_VERSIONS, 0, header.correlation_id, body)
    raise ProtocolError(f"API {header.api_key} version {header.version} is not served")
