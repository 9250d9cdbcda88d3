"""IncrementalAlterConfigs (key 44), versions 0–1: sets and deletes settings, and edits lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.handlers.alter_configs import alter_resources
from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.config import Option

VERSIONS: Final = (0, 1)

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Change the given settings of each topic and group."""
    return await alter_resources(broker, request, context, _changed)


def _changed(options: Mapping[str, Option], given: Mapping[str, str], resource: Any) -> Mapping[str, str]:
    configs = dict(given)
    for change in resource.configs:
        option = options.get(change.name)
        if option is None:
            raise InvalidConfig(f"unknown setting {change.name!r}; the settings are {', '.join(options)}")
        if change.config_operation == DELETE:
            configs.pop(change.name, None)
        elif change.value is None:
            raise InvalidConfig(f"{change.name} has no value: set one, or delete the setting")
        elif change.config_operation == SET:
            configs[change.name] = change.value
        elif option.kind == "list" and change.config_operation in (APPEND, SUBTRACT):
            current = configs.get(change.name, option.default)
            configs[change.name] = _edit_list(current, change.value, adds=change.config_operation == APPEND)
        else:
            raise InvalidConfig(f"{change.name} is not a list: set its value instead")
    return configs


def _edit_list(current: str, value: str, *, adds: bool) -> str:
    values = value.split(",")
    changed = set(values)
    items = [item for item in current.split(",") if item and item not in changed]
    return ",".join(items + values if adds else items)
