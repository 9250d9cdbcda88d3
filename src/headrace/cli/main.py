"""The entry point. The broker takes a short way in, past everything that only people at a terminal need."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command in `sys.argv`, and leave with its exit code: 0 done, 1 failed, 2 misused."""
    if sys.argv[1:2] == ["broker"]:
        sys.exit(run_broker(sys.argv[2:]))
    else:
        from headrace.cli.app import app

        app()


def run_broker(arguments: list[str]) -> int:
    """The exit code of a broker that ran in this process until it was told to stop.

    Nothing of typer, rich or librdkafka is imported on this way: the broker is to be ready in a blink, and
    its process is not to carry them.
    """
    from headrace.broker.__main__ import main as broker_main

    return broker_main(arguments)
