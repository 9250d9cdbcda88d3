"""The process in which partitions are compacted, so that the broker's event loop keeps its latency.

`python -m headrace.storage.compactor` reads a request from standard input, one line, works at low priority,
and prints the result, one line. It ends at once when its standard input is closed: a broker that was killed
leaves no compactor behind that would write into the folder of the next one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from headrace.errors import HeadraceError
from headrace.storage.compaction.request import CompactionRequest, CompactionResult
from headrace.storage.errors import StorageError

_LOWEST_PRIORITY = 19
_MAX_LINE_BYTES = 64 * 1024 * 1024


async def run_compactor(request: CompactionRequest) -> CompactionResult:
    """Compact in a process of its own; cancelling the caller ends the process."""
    import asyncio  # the broker has it; the process that compacts starts faster without

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.storage.compactor",
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
        # Its input stays open while it works: the end of input is the sign that the broker is gone.
        complaint, line = await asyncio.gather(process.stderr.read(), process.stdout.readline())
        status = await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if status != 0 or not line:
        reason = complaint.decode(errors="replace").strip() or f"it ended with status {status}"
        raise StorageError(f"{request.directory} was not compacted: {reason}")
    return CompactionResult.from_json(line.decode())


def main() -> int:
    """Serve the one request on standard input; 0 when its result was printed."""
    os.nice(_LOWEST_PRIORITY)
    request = CompactionRequest.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    from headrace.storage.compaction.cleaner import compact

    try:
        result = compact(request)
    except (HeadraceError, OSError) as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    sys.stdout.write(result.to_json() + "\n")
    sys.stdout.flush()
    return 0


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main())
