"""The kernels under fuzzed bytes: they agree with their references, and read nothing beyond their arrays."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.columns.fuzzing import FUZZERS
from tests.soak.summary import RecordProperty

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["json", "csv"])
def test_a_fast_parser_agrees_with_its_reference(name: str) -> None:
    assert FUZZERS[name](random.Random(11), range(60)) > 500


def run_with_bounds_checks(folder: Path, name: str, seed: int, seconds: float) -> str:
    """The last line of a fuzzer; compiled with bounds checks, a kernel that leaves an array raises."""
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.columns.fuzzing", name, str(seed), str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | checked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.strip()


@pytest.mark.timeout(300)
def test_no_fuzzed_record_batch_leads_a_kernel_out_of_its_array(tmp_path: Path) -> None:
    assert "inputs from seed 5" in run_with_bounds_checks(tmp_path, "cut", 5, 2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(FUZZERS))
def test_no_fuzzed_input_leads_a_kernel_out_of_its_array_for_a_minute(
    tmp_path: Path, record_property: RecordProperty, name: str
) -> None:
    seed = random.randrange(1 << 30)
    said = run_with_bounds_checks(tmp_path, name, seed, 60)
    record_property("fuzzer", said)
    assert f"inputs from seed {seed}" in said
