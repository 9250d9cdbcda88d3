"""Which broker is meant: `--broker`, else `HEADRACE_BROKER`, else the nearest `headrace.toml`, or 9092 here.

In the file it is `address` in the section `[broker]`. Several addresses of a cluster have commas between.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.failure import Misuse
from headrace.client.address import BadAddress, read_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.address import Address

DEFAULT: Final = "127.0.0.1:9092"
VARIABLE: Final = "HEADRACE_BROKER"
FILE: Final = "headrace.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The addresses of a broker or of a cluster, and who said so."""

    addresses: tuple[Address, ...]
    origin: str
    """Where the address came from, as the rest of a sentence: "from --broker"."""

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


def broker_address(
    option: str | None, *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> BrokerAddress:
    """The address that counts, given the value of `--broker`.

    The environment and the current folder are those of the process, unless others are given.
    """
    environment = os.environ if environment is None else environment
    if option is not None:
        return _read(option, "from --broker")
    if environment.get(VARIABLE):
        return _read(environment[VARIABLE], f"from {VARIABLE} in the environment")
    file = nearest_file(folder or Path.cwd())
    text = None if file is None else _address_in(file)
    if text is not None:
        return _read(text, f"from {file}")
    return _read(DEFAULT, "the default")


def nearest_file(folder: Path) -> Path | None:
    """The `headrace.toml` of `folder`, or of the closest folder above it that has one."""
    for candidate in (folder, *folder.parents):
        if (candidate / FILE).is_file():
            return candidate / FILE
    return None


def _address_in(file: Path) -> str | None:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise Misuse(
            f"{file} cannot be read: {fault}.\nCorrect it, or name the broker with --broker."
        ) from fault
    section = content.get("broker", {})
    address = section.get("address") if isinstance(section, dict) else section
    if address is not None and not isinstance(address, str):
        raise Misuse(f'{file}: the address is to be text: write [broker] and below it address = "{DEFAULT}".')
    return address


def _read(text: str, origin: str) -> BrokerAddress:
    try:
        return BrokerAddress(addresses=read_addresses(text), origin=origin)
    except BadAddress as fault:
        raise Misuse(f"{fault} (it came {origin})") from fault
