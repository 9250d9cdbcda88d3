"""What is set, and by whom: arguments win over the environment, and that over the nearest `headrace.toml`.

`SETTINGS` is the table of all of them.

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

from headrace.client.bootstrap import PLAINTEXT, BadAddress, Bootstrap, check_profile_name, with_profile
from headrace.errors import Misuse
from headrace.logs import FORMATS, LEVELS
from headrace.metrics.address import MetricsAddress
from headrace.password import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.client.bootstrap import Address

FILE: Final = "headrace.toml"
STATE: Final = ".headrace"
LOCAL: Final = "local[*]"
DEFAULT_BROKER: Final = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: where it can be set, its default, and what it means."""

    doc: str
    default: str = ""
    option: str = ""
    """The command-line option, or the argument in Python."""
    variable: str = ""
    """The environment variable."""
    section: str = ""
    """The section of `headrace.toml`."""
    key: str = ""
    """The key in that section."""
    example: str = ""


BROKER_ADDRESS: Final = Setting(
    doc="Addresses of the broker or of the Kafka cluster, separated by commas.",
    default="`headrace run` starts a private broker; other commands use 127.0.0.1:9092",
    option="--broker",
    variable="HEADRACE_BROKER",
    section="broker",
    key="address",
    example="127.0.0.1:9092",
)
SECURITY_PROFILE: Final = Setting(
    doc="Security profile for connections to the brokers, a section `[security.NAME]`; `PLAINTEXT` for none.",
    default="PLAINTEXT",
    option="--broker NAME://HOST:PORT",
    variable="HEADRACE_SECURITY_PROFILE",
    section="broker",
    key="security",
    example="production",
)
SPARK_MASTER: Final = Setting(
    doc="Spark's master URL.",
    default="local[*], all cores of this machine",
    option="--master",
    variable="HEADRACE_MASTER",
    section="spark",
    key="master",
    example="local[2]",
)
SPARK_SETTINGS: Final = Setting(
    doc="Spark properties, by their own names in quotes.",
    default="chosen for the machine",
    section="spark.settings",
    key="*",
    example="2g",
)
STATE_FOLDER: Final = Setting(
    doc="Folder for checkpoints and, if `headrace run` starts a broker, for the broker's data.",
    default=".headrace next to headrace.toml, or next to the pipeline file",
    option="--state",
    variable="HEADRACE_STATE",
    section="jobs",
    key="state",
    example="./state",
)
CHECKPOINTS: Final = Setting(
    doc="Folder or URL for the checkpoints of jobs. All workers of a Spark cluster must reach it.",
    default="in the state folder",
    variable="HEADRACE_CHECKPOINTS",
    section="jobs",
    key="checkpoints",
    example="/mnt/streams",
)
SECURITY_PROTOCOL: Final = "HEADRACE_SECURITY_PROTOCOL"
"""The one variable without which the environment does not describe a security profile."""
ENVIRONMENT: Final = "environment"
"""The name of the profile that only variables of the environment describe."""
PROJECT: Final = Setting(
    doc="Folder in which the search for `headrace.toml` begins.",
    default="the folder of the pipeline file, otherwise the current folder",
    variable="HEADRACE_PROJECT",
)
CAPTURE_SALT: Final = Setting(
    doc="Salt of the SHA-256 hashes that replace the values of `--hash` columns in a capture.",
    default="empty",
    option="--salt-file",
    variable="HEADRACE_SALT",
)


NEW_PASSWORD: Final = Setting(
    doc="Password for `headrace broker init` and `headrace user create`.",
    default="prompted for in the terminal",
    option="--password-file",
    variable=VARIABLE,
)


def _metrics(part: str, variable: str, *, doc: str) -> Setting:
    return Setting(
        doc=f"Address, or port on 127.0.0.1, of the metrics and health of {doc}.",
        default="not served",
        option="metrics=" if part == "events" else "--metrics",
        variable=variable,
        section="metrics",
        key=part,
        example="9404",
    )


METRICS: Final = {
    "run": _metrics("run", "HEADRACE_METRICS_RUN", doc="`headrace run` and its captures"),
    "capture": _metrics("capture", "HEADRACE_METRICS_CAPTURE", doc="`headrace capture`"),
    "events": _metrics("events", "HEADRACE_METRICS_EVENTS", doc="`EventStore(…)`"),
}
"""The addresses of metrics, by the part of Headrace: each is a separate process."""
METRICS_ALLOW_REMOTE: Final = Setting(
    doc="`true` to serve metrics on addresses that other machines reach. The page has no authentication.",
    default="false",
    option="--metrics-allow-remote",
    variable="HEADRACE_METRICS_ALLOW_REMOTE",
    section="metrics",
    key="allow-remote",
    example="true",
)
LOG_LEVEL: Final = Setting(
    doc="Log records of this level and above: `debug`, `info`, `warning` or `error`.",
    default="warning",
    option="--log-level",
    variable="HEADRACE_LOG_LEVEL",
    section="log",
    key="level",
    example="info",
)
LOG_FORMAT: Final = Setting(
    doc="Format of the log on standard error: `text`, or `json` with one document per line.",
    default="text",
    option="--log-format",
    variable="HEADRACE_LOG_FORMAT",
    section="log",
    key="format",
    example="json",
)


TRACING_ENDPOINT: Final = Setting(
    doc="OTLP endpoint for traces of jobs, captures, event stores and queues: the base URL of a collector.",
    default="no traces",
    variable="OTEL_EXPORTER_OTLP_ENDPOINT",
    section="tracing",
    key="endpoint",
    example="http://127.0.0.1:4318",
)


def _service(name: str, *, doc: str, default: str = "", option: str = "url=", example: str) -> Setting:
    return Setting(
        doc=doc,
        default=default,
        option=option,
        variable=f"HEADRACE_{name.upper()}",
        section=name,
        key="url",
        example=example,
    )


SERVICES: Final = {
    "postgres": _service(
        "postgres",
        doc="Database of `postgres(…)` sinks and of projections in PostgreSQL.",
        example="postgresql://user@host/database",
    ),
    "sqlite": _service("sqlite", doc="File of `sqlite(…)` sinks.", option="file=", example="shop.db"),
    "redis": _service(
        "redis",
        doc="Server of `redis(…)` sinks.",
        default="redis://127.0.0.1:6379/0",
        example="redis://127.0.0.1:6379/0",
    ),
    "smtp": _service(
        "smtp",
        doc="Mail server of `email(…)` sinks.",
        default="smtp://127.0.0.1:25",
        option="smtp=",
        example="smtp://127.0.0.1:25",
    ),
    "capture": _service(
        "capture",
        doc="PostgreSQL database that `headrace capture` captures.",
        option="URL, --url",
        example="postgresql://user@host/database",
    ),
}
"""The addresses of other servers, by the name that `Settings.url` takes."""

SETTINGS: Final = (
    BROKER_ADDRESS,
    SECURITY_PROFILE,
    SPARK_MASTER,
    SPARK_SETTINGS,
    STATE_FOLDER,
    CHECKPOINTS,
    PROJECT,
    *SERVICES.values(),
    CAPTURE_SALT,
    NEW_PASSWORD,
    *METRICS.values(),
    METRICS_ALLOW_REMOTE,
    LOG_LEVEL,
    LOG_FORMAT,
    TRACING_ENDPOINT,
)
"""Every setting that is read from the environment or from `headrace.toml`."""


class SettingText(NamedTuple):
    """The text of a setting, and where it is configured."""

    text: str
    origin: str
    """Where it is configured, for messages: "from --broker"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The addresses of a broker or of a cluster, their security profile, and where they are configured."""

    addresses: tuple[Address, ...]
    origin: str
    profile: str = PLAINTEXT

    def __str__(self) -> str:
        return str(Bootstrap(addresses=self.addresses, profile=self.profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the environment and the file; arguments have precedence."""

    environment: Mapping[str, str] = field(repr=False)
    """It may hold secrets, and so may the file: they are not printed."""
    folder: Path
    """The current folder."""
    project: Path
    """The folder where the file is looked for first."""
    file: Path | None = None
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)

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
            project = folder / environment.get(PROJECT.variable, "")
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
        configured = self._find(BROKER_ADDRESS, argument)
        return None if configured is None else self._secured(configured)

    def broker_or_default(self, argument: str | None = None) -> BrokerAddress:
        """The address that was named, or else that of a broker on this machine."""
        return self.broker(argument) or self._secured(SettingText(DEFAULT_BROKER, "the default"))

    def security_profile(self) -> str:
        """The profile for addresses that name none themselves."""
        configured = self._find(SECURITY_PROFILE, None)
        if configured is None:
            return ENVIRONMENT if self.environment.get(SECURITY_PROTOCOL) else PLAINTEXT
        try:
            return check_profile_name(configured.text)
        except BadAddress as fault:
            raise Misuse(f"{fault} ({configured.origin})") from fault

    def security_profiles(self) -> Mapping[str, Mapping[str, Any]]:
        """The sections `[security.NAME]`, by their names."""
        profiles = self._section("security")
        if any(not isinstance(profile, dict) for profile in profiles.values()):
            raise Misuse(f"{self.file}: a security profile is a section: write [security.production].")
        return profiles

    def master(self, argument: str | None = None) -> str:
        """The master that Spark is to use."""
        configured = self._find(SPARK_MASTER, argument)
        return LOCAL if configured is None else configured.text

    def state(self, argument: str | None = None) -> Path:
        """The folder of checkpoints and, for an embedded broker, of its data."""
        configured = self._find(STATE_FOLDER, argument)
        base = self.project if self.file is None else self.file.parent
        if configured is None:
            return base / STATE
        return (base if configured.origin == f"from {self.file}" else self.folder) / configured.text

    def checkpoints(self) -> str | None:
        """Where checkpoints are, if not in the state folder."""
        configured = self._find(CHECKPOINTS, None)
        return None if configured is None else configured.text

    def url(self, service: str, argument: str | None = None) -> str | None:
        """The address of a service that outputs go to, such as `postgres`, if one was named."""
        configured = self._find(SERVICES[service], argument)
        return None if configured is None else configured.text

    def metrics(
        self, part: str, argument: str | None = None, *, allow_remote: bool = False
    ) -> MetricsAddress | None:
        """Where a part of Headrace, such as `run`, serves its metrics; None if it does not."""
        configured = self._find(METRICS[part], argument)
        if configured is None:
            return None
        allowed = self._choice(METRICS_ALLOW_REMOTE, "true" if allow_remote else None, ("false", "true"))
        try:
            return MetricsAddress.parse(configured.text, allow_remote=allowed == "true")
        except Misuse as fault:
            raise Misuse(f"{fault} ({configured.origin})") from fault

    def tracing(self) -> str | None:
        """Where traces are exported to; None if they are not."""
        configured = self._find(TRACING_ENDPOINT, None)
        return None if configured is None else configured.text

    def log(self, level: str | None = None, log_format: str | None = None) -> tuple[str, str]:
        """The level and the format of the log."""
        return self._choice(LOG_LEVEL, level, LEVELS, default="warning"), self._choice(
            LOG_FORMAT, log_format, FORMATS
        )

    def _choice(
        self, setting: Setting, argument: str | None, choices: Sequence[str], default: str | None = None
    ) -> str:
        configured = self._find(setting, argument)
        if configured is None:
            return default or choices[0]
        if configured.text not in choices:
            raise Misuse(
                f"{configured.text!r} ({configured.origin}) is not possible for {setting.option}: use one of "
                f"{', '.join(choices)}."
            )
        return configured.text

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

    def _find(self, setting: Setting, argument: str | None) -> SettingText | None:
        if argument is not None:
            return SettingText(argument, f"from {setting.option}")
        if self.environment.get(setting.variable):
            return SettingText(
                self.environment[setting.variable], f"from {setting.variable} in the environment"
            )
        value = self._section(setting.section).get(setting.key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._not_text(setting)
        return SettingText(value, f"from {self.file}")

    def _secured(self, configured: SettingText) -> BrokerAddress:
        """The addresses in a text, with the profile that it names, or else that of the settings."""
        if "://" not in configured.text:
            configured = SettingText(
                with_profile(self.security_profile(), configured.text), configured.origin
            )
        return read_broker_address(configured)

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self.content.get(name, {})
        if not isinstance(section, dict):
            raise Misuse(f"{self.file}: {name} must be a section: write [{name}] on a separate line.")
        return section

    def _not_text(self, setting: Setting) -> Misuse:
        return Misuse(
            f"{self.file}: the {setting.key} must be text: write [{setting.section}] and below it "
            f'{setting.key} = "{setting.example}".'
        )


@contextmanager
def project_folder(folder: Path) -> Iterator[None]:
    """A block in which this process, and processes that it starts, have this project folder.

    Outputs look up their addresses when they are opened, on threads of Spark's and in child processes; the
    environment is what all of them share.
    """
    before = os.environ.get(PROJECT.variable)
    os.environ[PROJECT.variable] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROJECT.variable]
        else:
            os.environ[PROJECT.variable] = before


def read_broker_address(configured: SettingText) -> BrokerAddress:
    """The addresses in a text; what is none is refused with its origin."""
    try:
        found = Bootstrap.of(configured.text)
    except BadAddress as fault:
        raise Misuse(f"{fault} ({configured.origin})") from fault
    return BrokerAddress(addresses=found.addresses, origin=configured.origin, profile=found.profile)


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
