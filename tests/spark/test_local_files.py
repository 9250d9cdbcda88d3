"""Spark's local files: no process is started to make one."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.local_files import CLASS, install_local_files


def local_files(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    jvm = context._jvm
    return jvm.org.apache.hadoop.fs.FileSystem.get(
        jvm.java.net.URI("file:///"), context._jsc.hadoopConfiguration()
    )


def test_everything_in_the_session_uses_them(spark: SparkSession) -> None:
    first = local_files(spark)
    install_local_files(spark)
    assert first.getClass().getName() == CLASS
    assert local_files(spark).equals(first)


def test_a_file_has_the_permissions_that_were_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    for mode in ("600", "754"):
        place = jvm.org.apache.hadoop.fs.Path(str(tmp_path / mode))
        local_files(spark).create(place).close()
        local_files(spark).setPermission(place, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
        assert oct((tmp_path / mode).stat().st_mode)[-3:] == mode
