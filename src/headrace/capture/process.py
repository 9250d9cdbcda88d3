"""A capture in its own process: `CaptureProcess` starts and supervises `python -m headrace.capture.process`.

The settings are sent as one line on standard input, so that no password is in the process list. End of file
on standard input asks the process to stop, and also happens when the parent is killed. Events are written to
standard output, one JSON document per line.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

from headrace.capture.errors import CaptureError, CaptureFailed, SourceLost
from headrace.capture.settings import CaptureSettings
from headrace.errors import HeadraceError, Misuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.capture import Capture


class CaptureProcess:
    """One capture. It ends with the program that started it, however that ends."""

    def __init__(self, settings: CaptureSettings, bootstrap: str, *, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._bootstrap = bootstrap
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._fault: Exception | None = None
        self._is_ready = False

    @property
    def name(self) -> str:
        """What people see it called."""
        return f"capture {self._settings.name}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of the process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Begin, from where the last run left off."""
        self._rest, self._fault, self._is_ready = b"", None, False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.capture.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        orders = {"settings": self._settings.to_dict(), "bootstrap": self._bootstrap}
        stdin, stdout = self._pipes(self._process)
        os.set_blocking(stdout.fileno(), False)
        stdin.write(json.dumps(orders).encode() + b"\n")
        stdin.flush()

    def is_active(self) -> bool:
        """Whether it still runs; raises what ended it, if that was a failure."""
        if self._process is None:
            return False
        code = self._process.poll()
        self._listen()
        if code is None:
            return True
        self._close()
        if code == 0:
            return False
        raise self._fault or SourceLost(f"the process of {self.name} ended with {code}.")

    def is_settled(self) -> bool:
        """Whether the topics of its tables are there."""
        return self._is_ready

    def ask_to_stop(self) -> None:
        """Let what is whole be stored, and then end."""
        if self._process is not None:
            self._pipes(self._process)[0].close()

    def stop(self) -> None:
        """End now; what was not stored is captured by the next run."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def _listen(self) -> None:
        assert self._process is not None
        said = self._rest + (self._pipes(self._process)[1].read() or b"")
        *lines, self._rest = said.split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, document: dict[str, Any]) -> None:
        if "text" in document:
            self._tell(f"{self.name} {document['text']}")
        elif "ready" in document:
            self._is_ready = True
        else:
            kind = CaptureFailed if document["hopeless"] else SourceLost
            self._fault = kind(document["error"])

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.wait()

    def _pipes(self, process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
        assert process.stdin is not None
        assert process.stdout is not None
        return process.stdin, process.stdout


def main() -> int:
    """The exit code of a capture that ran until it was told to stop."""
    from headrace.capture.capture import Capture

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
