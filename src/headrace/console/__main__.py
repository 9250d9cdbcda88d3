"""A console as a child process: `python -m headrace.console LISTEN BROKER STATE`."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.console.app import Console, ConsoleOptions
from headrace.gateway.process import main

if __name__ == "__main__":
    listen, broker, state = sys.argv[1:4]
    sys.exit(main(listen, broker, Console(ConsoleOptions(state=Path(state))).routes()))
