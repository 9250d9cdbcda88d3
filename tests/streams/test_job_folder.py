"""What a job leaves on disk, and who may touch it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.engine.description import Description, IncompatibleChange
from headrace.errors import Misuse
from headrace.spark.progress import ProgressMarker
from headrace.streams.job_folder import JobFolder, JobIsElsewhere, JobIsRunning, find_job, job_folders

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


def test_all_that_a_job_depends_on_is_where_its_checkpoints_are(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    folder, other = (JobFolder.of(tmp_path / name, "shop", "large", checkpoints=shared) for name in "ab")
    folder.accept(DESCRIPTION)
    folder.reset(kind="time", value=1000)
    assert other.checkpoint == folder.checkpoint == f"{shared}/shop/large/checkpoint-2"
    assert (other.beginning(), other.identity()) == (folder.beginning(), folder.identity())
    assert str(other.outputs) == f"{shared}/shop/large/outputs-2"
    assert [each.checkpoint for each in job_folders(tmp_path / "a")] == [folder.checkpoint]


def mark_of(folder: JobFolder, batch: int) -> ProgressMarker:
    return ProgressMarker(query="q", batch=batch, offsets={}, job_id=folder.identity(), place=folder.place)


def test_a_job_whose_last_batch_is_of_another_folder_is_refused_until_it_is_reset(tmp_path: Path) -> None:
    old, new = (JobFolder.of(tmp_path / name, "shop", "large") for name in ("old", "new"))
    for folder in (old, new):
        folder.claim(None)
    old.claim(mark_of(old, 7))
    with pytest.raises(
        JobIsElsewhere, match=rf"\(batch 7\).*{tmp_path}/old/shop/large on .*headrace job reset"
    ):
        new.claim(mark_of(old, 7))
    new.reset(kind="start")
    new.claim(mark_of(old, 7))
    new.claim(mark_of(old, 7))  # started again before its first batch was done
    with pytest.raises(JobIsElsewhere):
        new.claim(mark_of(old, 8))  # the old one was not stopped
    with pytest.raises(JobIsElsewhere):
        old.claim(mark_of(new, 0))


def test_a_folder_that_was_reset_and_ran_claims_nothing_of_others(tmp_path: Path) -> None:
    first, second = (JobFolder.of(tmp_path / name, "shop", "large") for name in ("first", "second"))
    first.reset(kind="start")
    first.claim(mark_of(first, 3))
    with pytest.raises(JobIsElsewhere):
        first.claim(mark_of(second, 0))


def test_a_checkpoint_without_an_identity_is_refused_until_the_job_is_reset(folder: JobFolder) -> None:
    Path(folder.checkpoint).mkdir(parents=True)
    with pytest.raises(Misuse, match=r"headrace job reset shop\.large --to start"):
        folder.claim(None)
    folder.reset(kind="start")
    folder.claim(None)


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
