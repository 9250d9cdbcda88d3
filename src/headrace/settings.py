"""What is set, and by whom: arguments win over the environment, and that over the nearest `headrace.toml`.

| setting | argument | environment | `headrace.toml` | otherwise |
|---|---|---|---|---|
| the broker | `--broker` | `HEADRACE_BROKER` | `[broker]` `address` | embedded in `run`, else 9092 here |
| Spark's master | `--master` | `HEADRACE_MASTER` | `[spark]` `master` | this machine, all cores |
| the state folder | `--state` | `HEADRACE_STATE` | `[jobs]` `state` | `.headrace` beside the file, or here |
| checkpoints | | `HEADRACE_CHECKPOINTS` | `[jobs]` `checkpoints` | in the state folder |
| more of Spark | | | `[spark.settings]` | |
| where outputs go | `url=` | `HEADRACE_POSTGRES`, … | `[postgres]` `url`, … | |
| the database to capture | `URL`, `--url` | `HEADRACE_CAPTURE` | `[capture]` `url` | |

The nearest `headrace.toml` is that of the project folder, or of the closest folder above it. The project
folder is that of the pipeline file while its jobs run, then `HEADRACE_PROJECT`, then the current folder. A
relative state folder in the file is relative to the file's own folder; one in an argument or in the
environment is relative to the current folder.
"""

from __future__ import annotations

import os
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.client.address import BadAddress, read_addresses
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.client.address import Address

FILE: Final = "headrace.toml"
STATE: Final = ".headrace"
PROJECT: Final = "HEADRACE_PROJECT"
LOCAL: Final = "local[*]"
EXAMPLES: Final = {
    "address": "127.0.0.1:9092",
    "master": "local[2]",
    "state": "./state",
    "checkpoints": "/mnt/streams",
    "url": "postgresql://user@host/database",
}


class Said(NamedTuple):
    """The text of a setting, and who said so."""

    text: str
    origin: str
    """Where it came from, as the rest of a sentence: "from --broker"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The addresses of a broker or of a cluster, and who said so."""

    addresses: tuple[Address, ...]
    origin: str

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment and the file say, to which arguments are put first."""

    environment: Mapping[str, str]
    folder: Path
    """The current folder."""
    project: Path
    """The folder where the file is looked for first."""
    file: Path | None = None
    content: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        project: Path | None = None,
    ) -> Settings:
        """The settings of this process, or of another environment and folder."""
        environment = os.environ if environment is None else environment
        folder = folder or Path.cwd()
        if project is None:
            project = folder / environment.get(PROJECT, "")
        file = nearest_file(project)
        return Settings(
            environment=environment,
            folder=folder,
            project=project,
            file=file,
            content={} if file is None else _content(file),
        )

    def broker(self, argument: str | None = None) -> BrokerAddress | None:
        """The address that was named, if one was."""
        said = self._find(argument, "--broker", "HEADRACE_BROKER", "broker", "address")
        return None if said is None else read_broker_address(said)

    def master(self, argument: str | None = None) -> str:
        """The master that Spark is to use."""
        said = self._find(argument, "--master", "HEADRACE_MASTER", "spark", "master")
        return LOCAL if said is None else said.text

    def state(self, argument: str | None = None) -> Path:
        """The folder of checkpoints and, for an embedded broker, of its data."""
        said = self._find(argument, "--state", "HEADRACE_STATE", "jobs", "state")
        base = self.project if self.file is None else self.file.parent
        if said is None:
            return base / STATE
        return (base if said.origin == f"from {self.file}" else self.folder) / said.text

    def checkpoints(self) -> str | None:
        """Where checkpoints are, if not in the state folder."""
        said = self._find(None, "", "HEADRACE_CHECKPOINTS", "jobs", "checkpoints")
        return None if said is None else said.text

    def url(self, service: str, argument: str | None = None) -> str | None:
        """The address of a service that outputs go to, such as `postgres`, if one was named."""
        said = self._find(argument, "", f"HEADRACE_{service.upper()}", service, "url")
        return None if said is None else said.text

    def spark(self) -> dict[str, str]:
        """Settings of Spark's own, by its names, from `[spark.settings]`."""
        section = self._section("spark").get("settings", {})
        if not isinstance(section, dict) or any(isinstance(value, dict | list) for value in section.values()):
            raise Misuse(
                f"{self.file}: settings of Spark's own have their names in quotes: write [spark.settings] "
                'and below it "spark.executor.memory" = "2g".'
            )
        return {
            name: str(value).lower() if value is True or value is False else str(value)
            for name, value in section.items()
        }

    def _find(self, argument: str | None, option: str, variable: str, section: str, name: str) -> Said | None:
        if argument is not None:
            return Said(argument, f"from {option}")
        if self.environment.get(variable):
            return Said(self.environment[variable], f"from {variable} in the environment")
        value = self._section(section).get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._not_text(section, name)
        return Said(value, f"from {self.file}")

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.content.get(name, {})
        if not isinstance(section, dict):
            raise Misuse(f"{self.file}: {name} is to be a section: write [{name}] on a line of its own.")
        return section

    def _not_text(self, section: str, name: str) -> Misuse:
        return Misuse(
            f"{self.file}: the {name} is to be text: write [{section}] and below it "
            f'{name} = "{EXAMPLES[name]}".'
        )


@contextmanager
def project_folder(folder: Path) -> Iterator[None]:
    """A block in which this process, and processes that it starts, have this project folder.

    Outputs look up their addresses when they are opened, on threads of Spark's and in child processes; the
    environment is what all of them share.
    """
    before = os.environ.get(PROJECT)
    os.environ[PROJECT] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROJECT]
        else:
            os.environ[PROJECT] = before


def read_broker_address(said: Said) -> BrokerAddress:
    """The addresses in a text; what is none is refused with its origin."""
    try:
        return BrokerAddress(addresses=read_addresses(said.text), origin=said.origin)
    except BadAddress as fault:
        raise Misuse(f"{fault} (it came {said.origin})") from fault


def nearest_file(folder: Path) -> Path | None:
    """The `headrace.toml` of `folder`, or of the closest folder above it that has one."""
    folder = folder.absolute()
    for candidate in (folder, *folder.parents):
        if (candidate / FILE).is_file():
            return candidate / FILE
    return None


def _content(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise Misuse(
            f"{file} cannot be read: {fault}.\nCorrect it, or run the command in a folder without it."
        ) from fault
