"""The process that compacts a partition, so that compaction does not delay the broker's event loop.

`python -m headrace.storage.compaction.compactor` reads a request from standard input, one line, works at low
priority, and prints the result, one line. It exits when its standard input is closed: a compactor must not
write into the data folder after its broker was killed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from headrace.errors import HeadraceError
from headrace.storage.compaction.plan import CompactionRequest, CompactionResult
from headrace.storage.errors import StorageError

_LOWEST_PRIORITY = 19
_MAX_LINE_BYTES = 64 * 1024 * 1024


async def run_compactor(request: CompactionRequest) -> CompactionResult:
    """Compact in a separate process, which is killed if the caller is cancelled."""
    import asyncio  # slow to import, and not needed in the compactor

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.storage.compaction.compactor",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdin.write(request.to_json().encode() + b"\n")
        # Its input stays open while it works: it exits at the end of input.
        error, line = await asyncio.gather(process.stderr.read(), process.stdout.readline())
        status = await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if status != 0 or not line:
        reason = error.decode(errors="replace").strip() or f"it ended with status {status}"
        raise StorageError(f"{request.directory} was not compacted: {reason}")
    return CompactionResult.from_json(line.decode())


def main() -> int:
    """Serve the request on standard input; returns the exit status."""
    os.nice(_LOWEST_PRIORITY)
    request = CompactionRequest.from_json(sys.stdin.readline())
    threading.Thread(target=_exit_with_input, daemon=True).start()
    from headrace.storage.compaction.cleaner import compact

    try:
        result = compact(request)
    except (HeadraceError, OSError) as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    sys.stdout.write(result.to_json() + "\n")
    sys.stdout.flush()
    return 0


def _exit_with_input() -> None:
    sys.stdin.read()
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
