"""The entry point. It runs the broker without importing the other commands."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command in `sys.argv`, and exit with its code: 0 success, 1 failure, 2 wrong usage."""
    if sys.argv[1:2] == ["broker"]:
        sys.exit(run_broker(sys.argv[2:]))
    else:
        from headrace.cli.app import app

        app()


def run_broker(arguments: list[str]) -> int:
    """Run a broker in this process until it is stopped. Returns its exit code.

    typer, rich and librdkafka are not imported here, so that the broker starts fast and its process stays
    small.
    """
    from headrace.broker.__main__ import main as broker_main

    return broker_main(arguments)
