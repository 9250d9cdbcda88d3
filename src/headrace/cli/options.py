"""The options and arguments that several commands share, each explained once."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.completion import complete_group, complete_topic

Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        help="Address of the broker; several with commas between. "
        "Otherwise HEADRACE_BROKER, the nearest headrace.toml, or 127.0.0.1:9092.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=complete_group)
]
