"""Write docs/reference/configuration.md from the code: every variable, key, option and setting there is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.broker.__main__ import _parser
from headrace.broker.shares.settings import GROUP_OPTIONS
from headrace.cli.app import app
from headrace.client.security import OPTIONS as SECURITY_OPTIONS
from headrace.settings import SETTINGS, Setting
from headrace.storage.config import OPTIONS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from headrace.client.security import SecurityOption
    from headrace.storage.config import Option

PAGE = Path(__file__).parents[1] / "docs/reference/configuration.md"

INTRODUCTION = """\
# Configuration reference

<!-- Generated from the code by `make reference`: change the code, not this page. -->

Headrace is configured in seven places:

| what | where | applies to |
|---|---|---|
| [environment variables and `headrace.toml`](#environment-variables-and-headracetoml) | the shell, the project | jobs, captures, commands |
| [security profiles](#security-profiles) | `headrace.toml`, the shell | connections to Kafka |
| [broker options](#broker-options) | the command line of `headrace broker` | one broker |
| [gateway options](#gateway-options) | the command line of `headrace gateway` | one HTTP gateway |
| [console options](#console-options) | the command line of `headrace console` | one web console |
| [topic settings](#topic-settings) | `headrace topic create` and `alter`, with `--config` | one topic |
| [group settings](#group-settings) | `queue(…, settings=…)`, any Kafka admin client | one group |

The arguments of streams, jobs and sinks are in the [API reference](api.md), and the options of `format("headrace")` in
[Spark data source](../spark.md).
"""

PROJECT = """\
## Environment variables and `headrace.toml`

An argument takes precedence over the environment, and the environment over `headrace.toml`. The file is the one next to
the pipeline file, or in the closest folder above it. Commands that take no pipeline file start the search from
`HEADRACE_PROJECT`, or from the current folder. A relative `state` folder is relative to the file's folder.
"""

SECURITY = """\
## Security profiles

The section `[security.NAME]` of `headrace.toml` describes how clients connect to a secured Kafka cluster, and `security` under
`[broker]`, `HEADRACE_SECURITY_PROFILE` or `NAME://HOST:PORT` chooses it: [Secured Kafka clusters](../secured-clusters.md). A
variable of the environment overrides the option in the profile.
"""

BROKER = """\
## Broker options

`headrace broker --help` prints the same list. [Running a broker](../broker.md) explains durability, retention and limits.
"""

GATEWAY = """\
## Gateway options

`headrace gateway --help` prints the same list. [HTTP gateway](../gateway.md) explains them.
"""

CONSOLE = """\
## Console options

`headrace console --help` prints the same list. [Web console](../console.md) explains them.
"""

TOPICS = """\
## Topic settings

Every topic setting of Apache Kafka 4.3 is accepted, under its name and with its default. An example:
`headrace topic create clicks --config retention.ms=3600000`.
"""

OWN = "### Settings that only Headrace has\n\nApache Kafka refuses to create a topic with one of these.\n"
UNUSED = "### Settings without effect\n\nThey are stored and described, so that topic definitions from elsewhere work.\n"

GROUPS = """\
## Group settings

Settings of share groups, under Kafka's names. Classic consumer groups have none: their members send session timeout and
heartbeat interval themselves. See [Queues](../queues.md).
"""
UNSERVED = (
    "### Group settings without effect\n\nThey belong to group protocols that the broker does not serve.\n"
)


def page() -> str:
    """The whole page."""
    own, used, unused = _sorted_out(OPTIONS.values())
    own_of_groups, groups, unserved = _sorted_out(GROUP_OPTIONS.values())
    parts = [INTRODUCTION, PROJECT, _project_table(), SECURITY, _security_table(), BROKER, _broker_table()]
    parts += [
        GATEWAY,
        _command_table("gateway"),
        CONSOLE,
        _command_table("console"),
        TOPICS,
        _option_table(used),
    ]
    parts += [OWN, _option_table(own), UNUSED, _option_table(unused)]
    parts += [GROUPS, _option_table([*groups, *own_of_groups]), UNSERVED, _option_table(unserved)]
    return "\n".join(parts)


def _sorted_out(options: Iterable[Option]) -> tuple[list[Option], list[Option], list[Option]]:
    """Settings of Headrace's own, those that have an effect, and those that are only accepted."""
    own, used, unused = [], [], []
    for option in sorted(options, key=lambda option: option.name):
        place = own if option.name.startswith("headrace.") else used
        (unused if option.doc.startswith("Accepted;") else place).append(option)
    return own, used, unused


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = head.count("|") - 1
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * columns, *lines]) + "\n"


def _project_table() -> str:
    head = "| environment | `headrace.toml` | argument | meaning | default |"
    return _table(head, map(_project_row, SETTINGS))


def _project_row(setting: Setting) -> tuple[str, ...]:
    key = f"`[{setting.section}]` `{setting.key}`" if setting.section else ""
    return (_code(setting.variable), key, _code(setting.option), setting.doc, setting.default)


def _security_table() -> str:
    head = "| option | environment | values | default | meaning |"
    return _table(head, map(_security_row, SECURITY_OPTIONS.values()))


def _security_row(option: SecurityOption) -> tuple[str, ...]:
    values = ", ".join(map(_code, option.choices)) or ("file" if option.is_path else "text")
    return (_code(option.name), _code(option.variable), values, option.default, option.doc)


def _broker_table() -> str:
    actions = [action for action in _parser()._actions if action.dest != "help"]
    return _table("| option | values | default | meaning |", map(_broker_row, actions))


def _command_table(name: str) -> str:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]  # it is a group
    return _table("| option | values | default | meaning |", map(_command_row, command.params))


def _command_row(option: Any) -> tuple[str, ...]:
    default = "" if option.default in (None, "", False) else _code(str(option.default))
    values = "" if option.is_flag else _code(option.metavar or "TEXT")
    return (_code(option.opts[0]), values, default, option.help)


def _broker_row(action: argparse.Action) -> tuple[str, ...]:
    values = ", ".join(map(_code, action.choices or ())) or _code(str(action.metavar or ""))
    default = "" if action.nargs == 0 or action.default is None else _code(str(action.default))
    return (_code(action.option_strings[-1]), values, default, _sentence(action.help or ""))


def _option_table(options: Iterable[Option]) -> str:
    return _table("| setting | type | default | meaning |", map(_option_row, options))


def _option_row(option: Option) -> tuple[str, ...]:
    return (_code(option.name), option.kind, _code(option.default), option.doc)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].removesuffix(".") + "." if text else ""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
