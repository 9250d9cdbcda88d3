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
import time
from typing import IO, TYPE_CHECKING, Any, Final

from headrace.capture.metrics import CaptureMetrics
from headrace.capture.settings import CaptureSettings
from headrace.capture.source import CaptureError, CaptureFailed, DatabaseUnavailable
from headrace.errors import HeadraceError, Misuse
from headrace.tracing import open_tracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.capture import Capture


METRICS_INTERVAL_S: Final = 1.0
"""How often a capture sends its metrics."""


class CaptureProcess:
    """A capture in its own process, which ends with its parent, even if the parent is killed."""

    def __init__(
        self,
        settings: CaptureSettings,
        bootstrap: str,
        *,
        on_message: Callable[[str], None],
        sends_metrics: bool = False,
    ) -> None:
        self.metrics = CaptureMetrics(name=settings.name)
        """What the process counted, if it `sends_metrics`; `is_active` reads them."""
        self._sends_metrics = sends_metrics
        self._settings = settings
        self._bootstrap = bootstrap
        self._on_message = on_message
        self._process: subprocess.Popen[bytes] | None = None
        self._partial_line = b""
        self._fault: Exception | None = None
        self._is_ready = False

    @property
    def name(self) -> str:
        """The name for display."""
        return f"capture {self._settings.name}"

    @property
    def is_running(self) -> bool:
        """Whether a process was started and has not been collected yet."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process id; the process must have been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; the capture continues at its committed offset."""
        self._partial_line, self._fault, self._is_ready = b"", None, False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.capture.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        request = {
            "settings": self._settings.to_dict(),
            "bootstrap": self._bootstrap,
            "metrics": self._sends_metrics,
        }
        stdin, stdout = self._pipes(self._process)
        os.set_blocking(stdout.fileno(), False)
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()

    def is_active(self) -> bool:
        """Whether the process runs; raises its error if it failed."""
        if self._process is None:
            return False
        code = self._process.poll()
        self._read_output()
        if code is None:
            return True
        self._close()
        if code == 0:
            return False
        raise self._fault or DatabaseUnavailable(f"the process of {self.name} exited with code {code}.")

    def is_settled(self) -> bool:
        """Whether the topics of its tables exist."""
        return self._is_ready

    def ask_to_stop(self) -> None:
        """Request a stop: complete transactions are committed first."""
        if self._process is not None:
            self._pipes(self._process)[0].close()

    def stop(self) -> None:
        """Kill the process; the next run captures what was not committed."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def _read_output(self) -> None:
        assert self._process is not None
        output = self._partial_line + (self._pipes(self._process)[1].read() or b"")
        *lines, self._partial_line = output.split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, document: dict[str, Any]) -> None:
        if "text" in document:
            self._on_message(f"{self.name} {document['text']}")
        elif "ready" in document:
            self._is_ready = True
        elif "metrics" in document:
            self.metrics = CaptureMetrics.from_dict(document["metrics"])
        else:
            kind = DatabaseUnavailable if document["retryable"] else CaptureFailed
            self._fault = kind(document["error"])

    def _close(self) -> None:
        process, self._process = self._process, None
        self.metrics.is_connected = False
        if process is not None:
            with process:
                process.wait()

    def _pipes(self, process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
        assert process.stdin is not None
        assert process.stdout is not None
        return process.stdin, process.stdout


def main() -> int:
    """Run a capture until it is requested to stop; returns the exit code."""
    from headrace.capture.capture import Capture
    from headrace.settings import Settings

    request = json.loads(sys.stdin.readline())
    capture = Capture(
        CaptureSettings.from_dict(request["settings"]),
        request["bootstrap"],
        on_message=lambda text: _emit(text=text),
        on_ready=lambda: _emit(ready=True),
        tracer=open_tracer("headrace-capture", Settings.read().tracing()),
    )
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    threading.Thread(target=_stop_at_end_of_input, args=(capture,), daemon=True).start()
    if request["metrics"]:
        threading.Thread(target=_send_metrics, args=(capture,), daemon=True).start()
    gc.freeze()  # keep loaded modules out of collections, which would delay changes
    try:
        capture.run()
    except HeadraceError as error:
        _emit(error=str(error), retryable=not isinstance(error, CaptureError | Misuse))
        return 1
    return 0


def _stop_at_end_of_input(capture: Capture) -> None:
    sys.stdin.read()
    capture.stop()


def _send_metrics(capture: Capture) -> None:
    while True:
        _emit(metrics=capture.metrics.to_dict())
        time.sleep(METRICS_INTERVAL_S)


_output_lock = threading.Lock()
"""Held while a document is written: threads emit metrics and messages."""


def _emit(**document: Any) -> None:
    try:
        with _output_lock:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        pass  # the parent has exited


if __name__ == "__main__":
    sys.exit(main())
