"""The context of a request: what its handler needs in addition to the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from headrace.broker.security.requirements import DENIED, REQUIRED

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from headrace.broker.listeners import Endpoint
    from headrace.broker.scheduling import TimeSlice
    from headrace.broker.security.acls import Access
    from headrace.broker.security.authentication import ConnectionAuthentication


NOT_AUTHORIZED: Final = "the user is not authorized for this operation"
OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The value of authorized operations that the client did not request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """API, version and client of a request, and its time slice."""

    api_key: int
    version: int
    client_id: str
    client_host: str
    endpoint: Endpoint
    """The address that the client connects to."""
    authentication: ConnectionAuthentication | None
    """The SASL exchange of the connection; None on listeners without SASL."""
    time_slice: TimeSlice
    """How long the request may run before it has to pause."""
    access: Access | None = None
    """What the client may do; None for everything."""

    def allows(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may make this request about a resource: see `security/requirements.py`."""
        access = self.access
        return access is None or access.allows(REQUIRED[self.api_key][resource_type], resource_type, name)

    def denial(self, *resources: tuple[ResourceType, str]) -> ErrorCode | None:
        """The error for the first resource that the client may not use; None if it may use them all."""
        if self.access is not None:
            for resource_type, name in resources:
                if not self.allows(resource_type, name):
                    return DENIED[resource_type]
        return None

    def allows_operation(
        self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether the client has a further right."""
        return self.access is None or self.access.allows(operation, resource_type, name)

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client has a right to at least one resource of a type."""
        return self.access is None or self.access.allows_any(operation, resource_type)

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may do with a resource, as the bits of Kafka's responses."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.allows_operation(operation, resource_type, name)
        )
