"""Jobs in the state folder, as the command line shows and resets them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.engine.description import Description
from headrace.spark.internals import SparkOperator
from headrace.streams.job_folder import JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job that has run."""
    folder = JobFolder.of(tmp_path, "shop", "revenue")
    operator = SparkOperator(kind="aggregation", keys=("product string",), holds=("sum(amount) double",))
    description = Description(
        generation=1,
        inputs=("orders",),
        output="sums",
        mode="update",
        operators=(operator,),
        schema="struct<x:int>",
    )
    folder.accept(description)
    return folder


def headrace(folder: JobFolder, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["job", *arguments, "--state", str(folder.path.parents[1])])


def test_jobs_are_listed(folder: JobFolder) -> None:
    assert headrace(folder, "list").stdout.splitlines()[1].split() == [
        "shop",
        "revenue",
        "no",
        "orders",
        "sums",
    ]
    (line,) = json.loads(headrace(folder, "list", "--json").stdout)
    assert (line["job"], line["running"], line["checkpoint"]) == ("revenue", False, 1)


def test_a_job_is_described_with_the_state_that_it_keeps(folder: JobFolder) -> None:
    out = headrace(folder, "describe", "revenue").stdout
    assert "writes      sums (update)" in out
    assert "keeps       aggregation by product string" in out
    document = json.loads(headrace(folder, "describe", "shop.revenue", "--json").stdout)
    assert document["query"]["inputs"] == ["orders"]


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("start", "at the start of its topics"),
        ("end", "at the end of its topics"),
        ("42", "at offset 42 of every partition"),
        ("2026-01-31T12:00:00Z", "at the records of 2026-01-31 12:00:00 UTC"),
    ],
)
def test_a_job_is_reset(folder: JobFolder, to: str, text: str) -> None:
    outcome = headrace(folder, "reset", "revenue", "--to", to, "--yes")
    assert outcome.stdout == f"at its next start, job revenue begins {text}\n"
    assert folder.checkpoint.endswith("checkpoint-2")
    assert f"begins      {text}" in headrace(folder, "describe", "revenue").stdout


def test_a_view_is_rebuilt_beside_a_job_that_may_run_on(folder: JobFolder) -> None:
    holder = JobFolder.of(folder.path.parents[1], "shop", "revenue")
    holder.hold()
    outcome = headrace(folder, "reset", "revenue", "--to", "start", "--rebuild")
    holder.release()
    assert "rebuilds its view: it begins at the start of its topics" in outcome.stdout
    assert folder.checkpoint.endswith("checkpoint-1")
    assert folder.beside.beginning().kind == "start"


def test_a_reset_has_to_be_confirmed(folder: JobFolder) -> None:
    outcome = headrace(folder, "reset", "revenue", "--to", "start")
    assert outcome.exit_code == 2
    assert "--yes" in outcome.stderr
    assert folder.checkpoint.endswith("checkpoint-1")


@pytest.mark.parametrize("arguments", [("reset", "revenue", "--to", "somewhere"), ("describe", "nothing")])
def test_a_misuse_ends_with_two(folder: JobFolder, arguments: tuple[str, ...]) -> None:
    assert headrace(folder, *arguments).exit_code == 2


def test_a_job_that_runs_is_not_reset(folder: JobFolder) -> None:
    holder = JobFolder.of(folder.path.parents[1], "shop", "revenue")
    holder.hold()
    outcome = headrace(folder, "reset", "revenue", "--to", "start", "--yes")
    holder.release()
    assert outcome.exit_code == 1
    assert "stop that one first" in outcome.stderr


def test_the_state_of_a_project_below_is_found_as_run_puts_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    description = Description(generation=1, inputs=("orders",), output="sums", mode="append", schema="")
    JobFolder.of(tmp_path / "shop" / ".headrace", "shop", "revenue").accept(description)
    (line,) = json.loads(CliRunner().invoke(app, ["job", "list", "--json"]).stdout)
    assert line["job"] == "revenue"

    JobFolder.of(tmp_path / "bank" / ".headrace", "bank", "balances").accept(description)
    failed = CliRunner().invoke(app, ["job", "list"])
    assert failed.exit_code != 0
    assert "several projects here have a state folder" in failed.output


def test_a_folder_in_which_no_job_has_run_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["job", "list"])
    assert "no job has run here" in failed.output
