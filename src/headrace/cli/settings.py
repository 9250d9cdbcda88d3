"""Which broker is meant: `--broker`, else `HEADRACE_BROKER`, else the nearest `headrace.toml`, or 9092 here.

In the file it is `address` in the section `[broker]`. Several addresses of a cluster have commas between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.settings import BrokerAddress, Said, Settings, read_broker_address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["BrokerAddress", "broker_address"]

DEFAULT: Final = Said("127.0.0.1:9092", "the default")


def broker_address(
    option: str | None, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> BrokerAddress:
    """The address that counts, given the value of `--broker`.

    The environment and the current folder are those of the process, unless others are given.
    """
    if option is not None:  # nothing else needs to be right then, not even the file
        return read_broker_address(Said(option, "from --broker"))
    named = Settings.read(environment=environment, folder=folder).broker()
    return named or read_broker_address(DEFAULT)
