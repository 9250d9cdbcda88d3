"""The compaction process: a request in, a result out, and no process left after the broker has exited."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.storage.compaction import swap_in
from headrace.storage.compaction.cleaner import SMALL_BYTES
from headrace.storage.compaction.compactor import run_compactor
from headrace.storage.errors import StorageError
from tests.storage.compacted_log import CompactedLog

COMPACTOR = [sys.executable, "-m", "headrace.storage.compaction.compactor"]


@pytest.fixture
def log(tmp_path):
    log = CompactedLog(tmp_path)
    for n in range(5):
        log.append((b"a", b"%d" % n), (b"b%d" % n, b"1"))
    log.roll()
    return log


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


async def test_a_partition_is_compacted_in_a_process_of_its_own(log):
    result = await run_compactor(log.request())
    assert (result.records_before, result.records_after) == (10, 6)
    assert len(log.contents()) == 10
    for group in result.groups:
        swap_in(log.directory, group)
    assert log.contents()[-2:] == [(8, b"a", b"4"), (9, b"b4", b"1")]
    assert len(log.contents()) == 6


async def test_a_large_partition_is_compacted_with_compiled_code(log):
    log.append((b"a", b"x" * SMALL_BYTES))
    log.roll()
    result = await run_compactor(log.request())
    assert (result.records_before, result.records_after) == (11, 6)


async def test_a_fault_of_the_compactor_is_told(log):
    path = log.directory / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="has no complete batch"):
        await run_compactor(log.request())
    assert not list(log.directory.glob("*.cleaned"))


async def test_a_segment_that_is_missing_is_told(log):
    with pytest.raises(StorageError, match="No such file"):
        await run_compactor(log.request(segments=(0, 5)))


async def test_a_compaction_that_is_cancelled_ends_its_process(log):
    others = child_processes()
    task = asyncio.create_task(run_compactor(log.request(io_bytes_per_s=1)))
    deadline = time.monotonic() + 20
    while not (children := child_processes() - others):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [pid for pid in children if is_running(pid)]


def child_processes():
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


def test_the_compactor_ends_when_the_broker_is_gone(log):
    process = subprocess.Popen(COMPACTOR, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        process.stdin.write(log.request(io_bytes_per_s=1).to_json().encode() + b"\n")
        process.stdin.flush()
        process.stdin.close()
        assert process.wait(timeout=100) == 2


def test_the_compactor_has_the_lowest_priority():
    process = subprocess.Popen(COMPACTOR, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 19)
        process.kill()


@pytest.mark.parametrize("module", ["compaction", "compaction.compactor"])
def test_what_the_broker_imports_loads_neither_numba_nor_numpy(module):
    script = f"import sys, headrace.storage.{module}; sys.exit(bool({{'numba', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_small_partition_is_compacted_without_numba(log):
    script = (
        "import sys; from headrace.storage.compaction.plan import CompactionRequest as R; "
        "from headrace.storage.compaction.cleaner import compact; "
        "compact(R.from_json(sys.stdin.readline())); sys.exit('numba' in sys.modules)"
    )
    request = log.request().to_json().encode() + b"\n"
    assert subprocess.run([sys.executable, "-c", script], input=request, check=False).returncode == 0
    assert list(log.directory.glob("*.cleaned"))
