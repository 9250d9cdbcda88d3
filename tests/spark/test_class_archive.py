"""The archive of Spark's classes: written at the end of a first start, used by the next, never in the way."""

import subprocess
from pathlib import Path

import pyspark
import pytest

from headrace.spark.class_archive import archive_options
from headrace.spark.java import Java, find_java

JARS = Path(pyspark.__file__).parent / "jars"


@pytest.fixture(scope="module", params=["the machine's", "the installed"])
def java(request: pytest.FixtureRequest) -> Java:
    return find_java() if request.param == "the machine's" else find_java({"PATH": ""})


def start(java: Java, *options: str) -> subprocess.CompletedProcess[str]:
    """Start a small program of Spark's."""
    program = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    return subprocess.run(
        [java.executable, *options, "-cp", f"{JARS}/*", *program],
        env={"SPARK_HOME": str(JARS.parent), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=True,
    )


def archived_classes(java: Java, log: Path, *options: str) -> int:
    start(java, *options, f"-Xlog:class+load=info:file={log}")
    lines = log.read_text().splitlines()
    return sum("org.apache.spark" in line and "shared objects file" in line for line in lines)


def test_a_start_leaves_its_classes_to_the_next_one(java: Java, tmp_path: Path) -> None:
    first = archive_options(java, JARS, tmp_path)
    assert any(option.startswith("-XX:ArchiveClassesAtExit=") for option in first)
    assert start(java, *first).stderr == ""
    then = archive_options(java, JARS, tmp_path)
    assert any(option.startswith("-XX:SharedArchiveFile=") for option in then)
    assert archived_classes(java, tmp_path / "log", *then) > 0


def test_an_archive_that_was_torn_is_written_again(java: Java, tmp_path: Path) -> None:
    start(java, *archive_options(java, JARS, tmp_path))
    (archive,) = tmp_path.glob("spark-*.jsa")
    archive.chmod(0o600)
    archive.write_bytes(bytes(archive.stat().st_size))  # a kill leaves the beginning for last
    again = archive_options(java, JARS, tmp_path)
    assert f"-XX:ArchiveClassesAtExit={archive}" in again
    assert start(java, *again).stderr == ""
    assert archived_classes(java, tmp_path / "log", *archive_options(java, JARS, tmp_path)) > 0


def test_an_archive_of_other_classes_is_no_obstacle(java: Java, tmp_path: Path) -> None:
    start(java, *archive_options(java, JARS, tmp_path))
    options = archive_options(java, JARS, tmp_path)
    program = ["-cp", str(next(JARS.glob("scala-library-*.jar"))), "scala.util.PropertiesTest"]
    done = subprocess.run([java.executable, *options, *program], capture_output=True, text=True, check=False)
    assert "ClassNotFoundException" in done.stderr
    assert "cds" not in done.stderr


def test_where_nothing_can_be_written_there_is_no_archive(java: Java, tmp_path: Path) -> None:
    assert archive_options(java, JARS, tmp_path / "missing") == ()
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    assert archive_options(java, JARS, spaced) == ()


def test_where_spark_has_a_folder_of_settings_there_is_no_archive(java: Java, tmp_path: Path) -> None:
    settings = tmp_path / "conf"
    assert archive_options(java, JARS, tmp_path, settings=settings) != ()
    settings.mkdir()
    assert archive_options(java, JARS, tmp_path, settings=settings) != ()
    (settings / "spark-defaults.conf").touch()
    assert archive_options(java, JARS, tmp_path, settings=settings) == ()


def test_a_java_that_cannot_make_an_archive_of_its_own_writes_none(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.write_text("#!/bin/sh\nexit 1\n")
    executable.chmod(0o755)
    assert archive_options(Java(executable=executable, version=17, found_in="PATH"), JARS, tmp_path) == ()
