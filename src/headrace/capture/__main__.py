"""A capture in a process of its own: `python -m headrace.capture`, started by a `CaptureProcess`.

Its orders come as one line on standard input, so that no password is in the list of processes; the end of
standard input is the order to stop, and comes too when the program that started it is killed. What happens is
said on standard output, a JSON document in each line.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from typing import Any

from headrace.capture.capture import Capture
from headrace.capture.errors import CaptureError
from headrace.capture.settings import CaptureSettings
from headrace.errors import HeadraceError, Misuse


def main() -> int:
    """The exit code of a capture that ran until it was told to stop."""
    orders = json.loads(sys.stdin.readline())
    capture = Capture(
        CaptureSettings.from_dict(orders["settings"]),
        orders["bootstrap"],
        tell=lambda text: _say(text=text),
        ready=lambda: _say(ready=True),
    )
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    threading.Thread(target=_await_end, args=(capture,), daemon=True).start()
    gc.freeze()  # what is loaded stays: looking through it again and again would hold up changes
    try:
        capture.run()
    except HeadraceError as error:
        _say(error=str(error), hopeless=isinstance(error, CaptureError | Misuse))
        return 1
    return 0


def _await_end(capture: Capture) -> None:
    sys.stdin.read()
    capture.stop()


def _say(**document: Any) -> None:
    try:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # nobody is left to hear it


if __name__ == "__main__":
    sys.exit(main())
