"""Small files next to a checkpoint: the same on this machine and on a file system that only Spark reaches."""

import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import Misuse
from headrace.folders import Folder, LocalFolder
from headrace.spark import folders
from headrace.spark.folders import HadoopFolder, check_shared, folder_at, machines_without
from headrace.spark.session import is_on_this_machine

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


pytestmark = pytest.mark.timeout(300)


def test_machines_that_do_not_see_a_file_are_named(spark: SparkSession, tmp_path: Path) -> None:
    assert machines_without(spark, tmp_path) == []
    assert machines_without(spark, tmp_path / "nothing") == [socket.gethostname()]


def test_a_folder_that_workers_do_not_see_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_shared(spark, str(tmp_path / "local"))
    monkeypatch.setattr(folders, "is_on_this_machine", lambda _: False)
    check_shared(spark, f"file:{tmp_path}/shared")
    check_shared(spark, "hdfs://name/state")
    assert list(tmp_path.rglob("*")) == []  # neither the checkpoint, which the job makes, nor the probe
    monkeypatch.setattr(folders, "machines_without", lambda *_: ["worker-2"])
    with pytest.raises(Misuse, match=r"worker-2 cannot see that folder.*under the same path"):
        check_shared(spark, str(tmp_path / "shared"))


def test_a_master_on_this_machine_is_known() -> None:
    masters = ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn")
    assert [is_on_this_machine(master) for master in masters] == [True, True, True, False, False, False]
