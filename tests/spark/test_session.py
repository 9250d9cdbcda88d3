"""Sessions: settings for this machine, for a cluster, and what a user may change."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.spark.java import driver_memory_gib, usable_cores, usable_memory_bytes
from headrace.spark.session import (
    CLASS,
    JAVA_OPTIONS,
    PYTHON_START,
    cores_of,
    install_local_files,
    local_settings,
    merged_settings,
    settings,
)

# The first of them waits for the JVM.
pytestmark = pytest.mark.timeout(300)


def test_a_session_runs_with_our_settings_and_knows_the_format(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.defaultParallelism == 2


def test_the_ports_of_the_driver_ask_for_a_secret(spark: SparkSession) -> None:
    assert spark.conf.get("spark.authenticate") == "true"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert "HEADRACE_JAVA" not in os.environ


def test_what_a_user_sets_wins_and_options_of_the_jvm_are_added() -> None:
    merged = merged_settings(settings(4), {"spark.sql.shuffle.partitions": "9", JAVA_OPTIONS: "-Xss4m"})
    assert merged["spark.sql.shuffle.partitions"] == "9"
    assert "-Dlog4j2.configurationFile=file:/" in merged[JAVA_OPTIONS]
    assert merged[JAVA_OPTIONS].endswith("/log4j2.properties -Xss4m")


def test_a_cluster_gets_nothing_that_is_meant_for_one_machine() -> None:
    assert not settings().keys() & local_settings(2).keys()
    assert "spark.sql.shuffle.partitions" not in settings()


def test_the_master_says_how_many_cores() -> None:
    assert [cores_of(each) for each in ("local[4]", "local[3,2]", "local[*]", "local", None)] == [
        4,
        3,
        None,
        1,
        None,
    ]


def test_memory_is_bounded_on_both_sides() -> None:
    assert [driver_memory_gib(gib << 30) for gib in (1, 8, 24, 512)] == [1, 2, 8, 16]
    assert usable_memory_bytes() > 0
    assert usable_cores() > 0


@pytest.mark.parametrize(
    "program",
    [
        "import traceback\ntry:\n    raise {error}\nexcept {error}:\n    traceback.print_exc()",
        "raise {error}",
        "class Closing:\n    def __del__(self):\n        raise {error}\nclosing = Closing()\ndel closing",
    ],
    ids=["caught", "uncaught", "unraisable"],
)
@pytest.mark.parametrize(("error", "is_told"), [("BrokenPipeError", False), ("ValueError", True)])
def test_a_python_process_that_spark_hung_up_on_does_not_complain(
    tmp_path: Path, program: str, error: str, is_told: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('of the machine')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PYTHON_START), str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", program.format(error=error)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (error in done.stderr, done.stdout) == (is_told, "of the machine\n")


def test_pyspark_is_loaded_from_where_it_is_compiled_unless_spark_is_another(tmp_path: Path) -> None:
    ours, others = (folder / "python/lib/pyspark.zip" for folder in (Path(pyspark.__file__).parent, tmp_path))
    assert ours.is_file()
    python_path = os.pathsep.join([str(ours), str(others), str(PYTHON_START)])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"],
        env=os.environ | {"PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (str(ours) in done.stdout, str(others) in done.stdout) == (False, True)


def test_so_is_that_of_tasks(spark: SparkSession) -> None:
    (loaded,) = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
    assert loaded == pyspark.__file__


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
