"""The table of APIs: which Kafka requests are served, in which versions, and by which handler.

ApiVersions is derived from this table. Produce, Fetch, ShareFetch and ShareAcknowledge get the frame itself;
all others get kio's entity and return a mapping that is encoded for the version of the request.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    client_quotas,
    client_telemetry,
    configs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl,
    scram_credentials,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    share_group_offsets,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
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
    2: _api(list_offsets),
    3: _api(metadata),
    8: _api(offset_commit),
    9: _api(offset_fetch),
    10: _api(find_coordinator),
    11: _api(join_group),
    12: _api(heartbeat),
    13: _api(leave_group),
    14: _api(sync_group),
    15: _api(describe_groups),
    16: _api(list_groups),
    17: Api(*sasl.HANDSHAKE_VERSIONS, sasl.handshake),
    API_VERSIONS: _api(api_versions),
    19: _api(create_topics),
    20: _api(delete_topics),
    21: _api(delete_records),
    22: _api(init_producer_id),
    23: _api(offset_for_leader_epoch),
    24: _api(add_partitions_to_txn),
    25: _api(add_offsets_to_txn),
    26: _api(end_txn),
    27: _api(write_txn_markers),
    28: _api(txn_offset_commit),
    29: Api(*acls.DESCRIBE_VERSIONS, acls.describe),
    30: Api(*acls.CREATE_VERSIONS, acls.create),
    31: Api(*acls.DELETE_VERSIONS, acls.delete),
    32: Api(*configs.DESCRIBE_VERSIONS, configs.describe),
    33: Api(*configs.ALTER_VERSIONS, configs.alter),
    35: _api(describe_log_dirs),
    36: Api(*sasl.AUTHENTICATE_VERSIONS, sasl.authenticate),
    37: _api(create_partitions),
    42: _api(delete_groups),
    44: Api(*configs.INCREMENTAL_ALTER_VERSIONS, configs.alter_incrementally),
    47: _api(offset_delete),
    48: Api(*client_quotas.DESCRIBE_VERSIONS, client_quotas.describe),
    49: Api(*client_quotas.ALTER_VERSIONS, client_quotas.alter),
    50: Api(*scram_credentials.DESCRIBE_VERSIONS, scram_credentials.describe),
    51: Api(*scram_credentials.ALTER_VERSIONS, scram_credentials.alter),
    60: _api(describe_cluster),
    61: _api(describe_producers),
    65: _api(describe_transactions),
    66: _api(list_transactions),
    71: Api(*client_telemetry.SUBSCRIPTIONS_VERSIONS, client_telemetry.get_subscriptions),
    72: Api(*client_telemetry.PUSH_VERSIONS, client_telemetry.push),
    74: Api(*configs.LIST_VERSIONS, configs.list_resources),
    75: _api(describe_topic_partitions),
    76: _api(share_group_heartbeat),
    77: _api(share_group_describe),
    SHARE_FETCH: _api(share_fetch),
    SHARE_ACKNOWLEDGE: _api(share_acknowledge),
    90: Api(*share_group_offsets.DESCRIBE_VERSIONS, share_group_offsets.describe),
    91: Api(*share_group_offsets.ALTER_VERSIONS, share_group_offsets.alter),
    92: Api(*share_group_offsets.DELETE_VERSIONS, share_group_offsets.delete),
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
        body = api_versions.unsupported(broker)
        return write_response(API_VERSIONS, 0, header.correlation_id, body)
    raise ProtocolError(f"API {header.api_key} version {header.version} is not served")
