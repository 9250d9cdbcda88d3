"""Users and their rights in an internal topic, which no client can read, write or see.

A record for each SCRAM credential, each ACL, each super user, and the quotas of each entity, in JSON;
compaction keeps the latest.
"""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from headrace.broker.security.quotas import Entity
from headrace.broker.security.scram import ScramCredential
from headrace.broker.state_log import StateRecord, UnknownRecord
from headrace.protocol.scram import ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.broker.state_log import StateLog

MAX_USER_BYTES: Final = 1024
MAX_USERS: Final = 10_000
MAX_ACLS: Final = 10_000
MAX_QUOTAS: Final = 10_000
SECRET_BYTES: Final = 32

_CREDENTIAL, _ACL, _SUPER_USER, _SECRET, _QUOTA = "credential", "acl", "super-user", "secret", "quota"

UserMechanism = tuple[str, ScramMechanism]


class SecurityStore:
    """What the broker knows of its users."""

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self.acls: set[Acl] = set()
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.super_users: set[str] = set()
        """The principals that `headrace broker init` has made."""
        self.secret = b""
        """From which the salts of users who do not exist are derived."""
        for entry in state.replay():
            if isinstance(entry, StateRecord):
                self._replay(entry)

    def make_secret(self) -> None:
        """Have a secret, the same after every restart."""
        if not self.secret:
            self.secret = secrets.token_bytes(SECRET_BYTES)
            self._state.append([_record(_SECRET, (), {"secret": _text(self.secret)})])

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What is known of a user's password."""
        return self._credentials.get(user, {}).get(mechanism)

    @property
    def users(self) -> list[str]:
        """The names of all users."""
        return list(self._credentials)

    @property
    def user_count(self) -> int:
        """The number of users."""
        return len(self._credentials)

    def credentials(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        """What is known of a user's password for each mechanism."""
        return self._credentials.get(user, {})

    def alter_credentials(self, changes: Mapping[UserMechanism, ScramCredential | None]) -> None:
        """Set or delete credentials; in the log when this returns, all or none of them."""
        self._state.append(
            [
                _record(
                    _CREDENTIAL,
                    (user, mechanism.sasl_name),
                    None if credential is None else _dump(credential),
                )
                for (user, mechanism), credential in changes.items()
            ]
        )
        for key, credential in changes.items():
            self._set_credential(key, credential)

    def add_acls(self, acls: Iterable[Acl]) -> list[Acl]:
        """Store entries; returns those that are new."""
        new = [acl for acl in dict.fromkeys(acls) if acl not in self.acls]
        if new:
            self._state.append([_record(_ACL, _fields(acl), {}) for acl in new])
        self.acls.update(new)
        return new

    def remove_acls(self, acls: Iterable[Acl]) -> None:
        """Delete entries."""
        gone = list(acls)
        if gone:
            self._state.append([_record(_ACL, _fields(acl), None) for acl in gone])
        self.acls.difference_update(gone)

    def alter_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Set all quotas of an entity; none if there are no values."""
        self._state.append([_record(_QUOTA, entity, values or None)])
        self._set_quotas(entity, values)

    def _set_quotas(self, entity: Entity, values: Mapping[str, float]) -> None:
        if values:
            self.quotas[entity] = dict(values)
        else:
            self.quotas.pop(entity, None)

    def add_super_users(self, principals: Iterable[str]) -> None:
        """Let principals do everything."""
        for principal in principals:
            self._state.append([_record(_SUPER_USER, (principal,), {})])
            self.super_users.add(principal)

    async def durable(self) -> None:
        """Return when all that was changed is as durable as the flush setting promises."""
        await self._state.durable()

    def _set_credential(self, key: UserMechanism, credential: ScramCredential | None) -> None:
        user, mechanism = key
        if credential is not None:
            self._credentials.setdefault(user, {})[mechanism] = credential
            return
        known = self._credentials.get(user, {})
        known.pop(mechanism, None)
        if not known:
            self._credentials.pop(user, None)

    def _replay(self, record: StateRecord) -> None:
        kind, *name = json.loads(record.key)
        try:
            self._apply(kind, name, record)
        except (KeyError, ValueError, StopIteration) as fault:
            raise UnknownRecord(
                f"the security topic holds a record of kind {kind!r} that a newer broker wrote: "
                "start that version on this folder"
            ) from fault

    def _apply(self, kind: str, name: list[Any], record: StateRecord) -> None:
        value = None if record.value is None else json.loads(record.value)
        if kind == _CREDENTIAL:
            key = (name[0], ScramMechanism.named(name[1]))
            self._set_credential(key, None if value is None else _load(value))
        elif kind == _ACL:
            (self.acls.discard if value is None else self.acls.add)(_acl(name))
        elif kind == _SUPER_USER:
            (self.super_users.discard if value is None else self.super_users.add)(name[0])
        elif kind == _QUOTA:
            self._set_quotas(Entity(*name), value or {})
        elif kind == _SECRET:
            self.secret = _bytes((value or {"secret": ""})["secret"])
        else:
            raise KeyError(kind)


def _fields(acl: Acl) -> tuple[str, ...]:
    return (
        acl.resource_type.name,
        acl.name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )


def _acl(fields: Sequence[str]) -> Acl:
    resource_type, name, pattern_type, principal, host, operation, permission = fields
    return Acl(
        ResourceType[resource_type],
        name,
        PatternType[pattern_type],
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )


def _record(
    kind: str, name: tuple[str | None, ...], value: Mapping[str, Any] | None
) -> tuple[bytes, bytes | None]:
    key = json.dumps([kind, *name]).encode()
    return key, None if value is None else json.dumps(value).encode()


def _dump(credential: ScramCredential) -> dict[str, Any]:
    return {
        "salt": _text(credential.salt),
        "iterations": credential.iterations,
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }


def _load(value: Mapping[str, Any]) -> ScramCredential:
    return ScramCredential(
        salt=_bytes(value["salt"]),
        iterations=value["iterations"],
        stored_key=_bytes(value["stored_key"]),
        server_key=_bytes(value["server_key"]),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
