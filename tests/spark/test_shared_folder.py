"""A checkpoint of a cluster lies where all its workers see it."""

import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import Misuse
from headrace.spark import shared_folder
from headrace.spark.session import is_on_this_machine
from headrace.spark.shared_folder import check_shared, machines_without

pytestmark = pytest.mark.timeout(300)


def test_machines_that_do_not_see_a_file_are_named(spark: SparkSession, tmp_path: Path) -> None:
    assert machines_without(spark, tmp_path) == []
    assert machines_without(spark, tmp_path / "nothing") == [socket.gethostname()]


def test_a_folder_that_workers_do_not_see_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_shared(spark, str(tmp_path / "local"))
    monkeypatch.setattr(shared_folder, "is_on_this_machine", lambda _: False)
    check_shared(spark, f"file:{tmp_path}/shared")
    check_shared(spark, "hdfs://name/state")
    assert list(tmp_path.rglob("*")) == []  # neither the checkpoint, which the job makes, nor the probe
    monkeypatch.setattr(shared_folder, "machines_without", lambda *_: ["worker-2"])
    with pytest.raises(Misuse, match=r"worker-2 cannot see that folder.*under the same path"):
        check_shared(spark, str(tmp_path / "shared"))


def test_a_master_on_this_machine_is_known() -> None:
    masters = ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn")
    assert [is_on_this_machine(master) for master in masters] == [True, True, True, False, False, False]
