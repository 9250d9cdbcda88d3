"""Small files next to a checkpoint: the same on this machine and on a file system that only Spark reaches."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.folders import Folder, LocalFolder
from headrace.spark.hadoop_folder import HadoopFolder, folder_at

Locate = Callable[[str], str]


@pytest.fixture(params=["local", "hadoop"])
def locate(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Locate:
    """Makes locations; a view of the local disk under another scheme is one that only Spark reaches."""
    if request.param == "local":
        return lambda name: str(tmp_path / name)
    table = f"t{uuid.uuid4().hex}"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set(f"fs.viewfs.mounttable.{table}.link./jobs", f"file://{tmp_path}")
    return lambda name: f"viewfs://{table}/jobs/{name}"


@pytest.fixture
def folder(locate: Locate) -> Folder:
    return folder_at(locate("shop/large"))


def test_a_folder_is_opened_by_what_reaches_it(locate: Locate) -> None:
    kind = HadoopFolder if locate("x").startswith("viewfs") else LocalFolder
    assert isinstance(folder_at(locate("x")), kind)
    assert str(folder_at(locate("x")).child("y")) == locate("x/y")


def test_a_file_is_replaced_as_a_whole(folder: Folder) -> None:
    assert (folder.read("a.json"), folder.names()) == (None, [])
    for text in ("first, and longer", "sécond"):
        folder.write("a.json", text)
        assert folder.read("a.json") == text
    folder.child("outputs-1").write("b.json", "b")
    assert folder.names() == ["a.json", "outputs-1"]
    assert folder.read("outputs-1/b.json") == "b"


def test_what_is_appended_follows_what_was_written(folder: Folder) -> None:
    folder.append("sent", "1")
    folder.append("sent", "2")
    assert folder.read("sent") == "12"
    folder.write("sent", "3")
    folder.append("sent", "4")
    assert folder.read("sent") == "34"


def test_a_folder_is_deleted_with_all_that_is_in_it(folder: Folder) -> None:
    folder.child("deep").append("a", "x")
    folder.delete()
    assert (folder.names(), folder.child("deep").read("a")) == ([], None)
