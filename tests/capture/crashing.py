"""A capture that kills itself with SIGKILL at a chosen moment: `python -m tests.capture.crashing`."""

import os
import signal
import sys

from headrace.capture.capture import Capture
from headrace.capture.settings import CaptureSettings
from headrace.client.shared_transaction import SharedTransaction

POINTS = ("in the snapshot", "before the commit", "after the commit")
ROWS = 10_000
"""After how many rows of a table the first of them comes."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, bootstrap: str, tables: str, point: str) -> None:
    commit = SharedTransaction.commit
    following = []

    def crash(transaction: SharedTransaction) -> None:
        if following and point == "before the commit":
            die()
        commit(transaction)
        if following and point == "after the commit":
            die()

    def on_progress(_: str, rows: int, __: int) -> None:
        if rows == ROWS and point == "in the snapshot":
            die()

    SharedTransaction.commit = crash  # type: ignore[method-assign]
    settings = CaptureSettings(url=url, tables=tuple(tables.split(",")), name="shop", once=True)
    Capture(settings, bootstrap, on_message=following.append, on_progress=on_progress).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
