"""The one table of which operation on which resource each API needs, as Apache Kafka demands it.

A handler asks `RequestContext.allows(resource type, name)`, which looks the operation up here; Produce, Fetch
and their kin of share groups ask `allowed`. Where a request may be made with one of several rights, or needs
a further one in some cases, `FURTHER` says so and its handler asks for it by name.

| error | when what is missing is |
|---|---|
| TOPIC_AUTHORIZATION_FAILED (29) | a right to a topic |
| GROUP_AUTHORIZATION_FAILED (30) | a right to a group |
| CLUSTER_AUTHORIZATION_FAILED (31) | a right to the cluster |
| TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) | a right to a transactional id |

A topic that a client may not describe is left out where all topics are asked for. Where Metadata names it by
id, the response does not tell its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.security.acls import Access

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_CLUSTER, _TRANSACTION = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

PUBLIC: Final = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions and SaslAuthenticate need no right."""

REQUIRED: Final[Mapping[int, Mapping[ResourceType, Operation]]] = {
    0: {_TRANSACTION: Operation.WRITE, _TOPIC: Operation.WRITE},  # Produce
    1: {_TOPIC: Operation.READ},  # Fetch
    2: {_TOPIC: Operation.DESCRIBE},  # ListOffsets
    3: {_TOPIC: Operation.DESCRIBE},  # Metadata
    8: {_GROUP: Operation.READ, _TOPIC: Operation.READ},  # OffsetCommit
    9: {_GROUP: Operation.DESCRIBE, _TOPIC: Operation.DESCRIBE},  # OffsetFetch
    10: {  # FindCoordinator; of share groups only brokers ask for it
        _GROUP: Operation.DESCRIBE,
        _TRANSACTION: Operation.DESCRIBE,
        _CLUSTER: Operation.CLUSTER_ACTION,
    },
    11: {_GROUP: Operation.READ},  # JoinGroup
    12: {_GROUP: Operation.READ},  # Heartbeat
    13: {_GROUP: Operation.READ},  # LeaveGroup
    14: {_GROUP: Operation.READ},  # SyncGroup
    15: {_GROUP: Operation.DESCRIBE},  # DescribeGroups
    16: {_GROUP: Operation.DESCRIBE, _CLUSTER: Operation.DESCRIBE},  # ListGroups: one of them
    19: {_TOPIC: Operation.CREATE, _CLUSTER: Operation.CREATE},  # CreateTopics: one of them
    20: {_TOPIC: Operation.DELETE},  # DeleteTopics
    21: {_TOPIC: Operation.DELETE},  # DeleteRecords
    22: {_TRANSACTION: Operation.WRITE, _CLUSTER: Operation.IDEMPOTENT_WRITE},  # InitProducerId
    23: {_TOPIC: Operation.DESCRIBE},  # OffsetForLeaderEpoch
    24: {  # AddPartitionsToTxn; the cluster's is that of brokers, from version 4 on
        _TRANSACTION: Operation.WRITE,
        _TOPIC: Operation.WRITE,
        _CLUSTER: Operation.CLUSTER_ACTION,
    },
    25: {_TRANSACTION: Operation.WRITE, _GROUP: Operation.READ},  # AddOffsetsToTxn
    26: {_TRANSACTION: Operation.WRITE},  # EndTxn
    27: {_CLUSTER: Operation.ALTER},  # WriteTxnMarkers
    28: {_TRANSACTION: Operation.WRITE, _GROUP: Operation.READ, _TOPIC: Operation.READ},  # TxnOffsetCommit
    29: {_CLUSTER: Operation.DESCRIBE},  # DescribeAcls
    30: {_CLUSTER: Operation.ALTER},  # CreateAcls
    31: {_CLUSTER: Operation.ALTER},  # DeleteAcls
    32: {  # DescribeConfigs; the cluster's for brokers
        _TOPIC: Operation.DESCRIBE_CONFIGS,
        _GROUP: Operation.DESCRIBE_CONFIGS,
        _CLUSTER: Operation.DESCRIBE_CONFIGS,
    },
    33: {  # AlterConfigs
        _TOPIC: Operation.ALTER_CONFIGS,
        _GROUP: Operation.ALTER_CONFIGS,
        _CLUSTER: Operation.ALTER_CONFIGS,
    },
    35: {_CLUSTER: Operation.DESCRIBE},  # DescribeLogDirs
    37: {_TOPIC: Operation.ALTER},  # CreatePartitions
    42: {_GROUP: Operation.DELETE},  # DeleteGroups
    44: {  # IncrementalAlterConfigs
        _TOPIC: Operation.ALTER_CONFIGS,
        _GROUP: Operation.ALTER_CONFIGS,
        _CLUSTER: Operation.ALTER_CONFIGS,
    },
    47: {_GROUP: Operation.DELETE, _TOPIC: Operation.READ},  # OffsetDelete
    48: {_CLUSTER: Operation.DESCRIBE_CONFIGS},  # DescribeClientQuotas
    49: {_CLUSTER: Operation.ALTER_CONFIGS},  # AlterClientQuotas
    50: {_CLUSTER: Operation.DESCRIBE},  # DescribeUserScramCredentials
    51: {_CLUSTER: Operation.ALTER},  # AlterUserScramCredentials
    60: {},  # DescribeCluster: only the operations that it lists need Describe of the cluster
    61: {_TOPIC: Operation.READ},  # DescribeProducers
    65: {_TRANSACTION: Operation.DESCRIBE, _TOPIC: Operation.DESCRIBE},  # DescribeTransactions
    66: {_TRANSACTION: Operation.DESCRIBE},  # ListTransactions
    71: {},  # GetTelemetrySubscriptions
    72: {},  # PushTelemetry
    74: {_CLUSTER: Operation.DESCRIBE_CONFIGS},  # ListConfigResources
    75: {_TOPIC: Operation.DESCRIBE},  # DescribeTopicPartitions
    76: {_GROUP: Operation.READ, _TOPIC: Operation.DESCRIBE},  # ShareGroupHeartbeat
    77: {_GROUP: Operation.DESCRIBE, _TOPIC: Operation.DESCRIBE},  # ShareGroupDescribe
    78: {_GROUP: Operation.READ, _TOPIC: Operation.READ},  # ShareFetch
    79: {_GROUP: Operation.READ, _TOPIC: Operation.READ},  # ShareAcknowledge
    90: {_GROUP: Operation.DESCRIBE, _TOPIC: Operation.DESCRIBE},  # DescribeShareGroupOffsets
    91: {_GROUP: Operation.READ, _TOPIC: Operation.READ},  # AlterShareGroupOffsets
    92: {_GROUP: Operation.DELETE, _TOPIC: Operation.READ},  # DeleteShareGroupOffsets
}
"""API key to what is needed of each type of resource that the request names."""

FURTHER: Final[Mapping[int, str]] = {
    3: "Create of the cluster or the topic, to create it; Describe of the cluster, to list its operations",
    19: "DescribeConfigs of a topic, to get its settings",
    20: "Describe of a topic that is named by id, to get its name",
    22: "Write of any topic is enough for an idempotent producer",
    23: "ClusterAction of the cluster is enough",
    27: "ClusterAction of the cluster is enough",
    60: "Describe of the cluster, to list its operations",
}
"""Rights besides the table, by API key."""

DENIED: Final[Mapping[ResourceType, ErrorCode]] = {
    _TOPIC: ErrorCode.topic_authorization_failed,
    _GROUP: ErrorCode.group_authorization_failed,
    _CLUSTER: ErrorCode.cluster_authorization_failed,
    _TRANSACTION: ErrorCode.transactional_id_authorization_failed,
}
"""The error for a missing right to a resource."""


def allowed(access: Access, api_key: int, resource_type: ResourceType, name: str) -> bool:
    """Whether the client may make a request of this API about a resource."""
    return access.allows(REQUIRED[api_key][resource_type], resource_type, name)
