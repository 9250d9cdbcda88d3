"""What a job leaves on disk, and who may touch it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import Misuse
from headrace.streams.description import Description, IncompatibleChange
from headrace.streams.job_folder import JobFolder, JobIsRunning, find_job, job_folders

DESCRIPTION = Description(generation=1, inputs=("orders",), output="large", mode="append")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder.of(tmp_path, "shop", "large")


def test_a_job_goes_on_from_the_checkpoint_that_it_made(folder: JobFolder) -> None:
    folder.accept(DESCRIPTION)
    folder.accept(replace(DESCRIPTION, output="other"))
    assert folder.description() == replace(DESCRIPTION, output="other")
    with pytest.raises(IncompatibleChange):
        folder.accept(replace(DESCRIPTION, inputs=("payments",)))
    assert folder.checkpoint == f"{folder.path}/checkpoint-1"


def test_a_reset_begins_another_checkpoint_and_leaves_the_old_one(folder: JobFolder) -> None:
    folder.accept(DESCRIPTION)
    old = Path(folder.checkpoint)
    old.mkdir()
    folder.reset(kind="time", value=1000)
    assert folder.checkpoint == f"{folder.path}/checkpoint-2"
    assert old.is_dir()
    assert (folder.beginning().kind, folder.beginning().value) == ("time", 1000)
    assert folder.description() is None
    folder.accept(replace(DESCRIPTION, generation=2, inputs=("payments",)))


def test_checkpoints_may_be_on_a_shared_file_system(tmp_path: Path) -> None:
    folder = JobFolder.of(tmp_path, "shop", "large", checkpoints="hdfs:///streams/")
    assert folder.checkpoint == "hdfs:///streams/shop/large/checkpoint-1"


def test_a_job_that_another_process_runs_is_left_alone(folder: JobFolder) -> None:
    hold = (
        "import sys, pathlib\nfrom headrace.streams.job_folder import JobFolder\n"
        f"folder = JobFolder.of(pathlib.Path({str(folder.path.parents[1])!r}), 'shop', 'large')\n"
        "folder.hold(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert folder.is_held
        with pytest.raises(JobIsRunning, match="another process"):
            folder.reset(kind="start")
        other.communicate()
    assert not folder.is_held
    folder.hold()
    folder.release()


def test_jobs_are_found_by_their_names(tmp_path: Path) -> None:
    for app, job in (("shop", "large"), ("shop", "revenue"), ("bank", "large")):
        JobFolder.of(tmp_path, app, job).accept(DESCRIPTION)
    assert [f"{folder.app}.{folder.name}" for folder in job_folders(tmp_path)] == [
        "bank.large",
        "shop.large",
        "shop.revenue",
    ]
    assert find_job(tmp_path, "revenue").app == "shop"
    assert find_job(tmp_path, "bank.large").app == "bank"
    with pytest.raises(Misuse, match=r"several applications.*bank\.large, shop\.large"):
        find_job(tmp_path, "large")
    with pytest.raises(Misuse, match="there is no job named 'nothing'"):
        find_job(tmp_path, "nothing")


def test_a_file_that_was_tampered_with_is_named(folder: JobFolder) -> None:
    folder.accept(DESCRIPTION)
    (folder.path / "job.json").write_text("{")
    with pytest.raises(Misuse, match=r"job\.json cannot be read"):
        folder.description()
