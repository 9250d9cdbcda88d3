"""A Spark session with settings for streams: on this machine, or on a cluster.

Starting one finds Java, silences Spark's logs, and makes the workers run the same Python. `more` overrides
the settings, by Spark's own names.

On this machine the session replaces Hadoop's local file system. That one runs the program `chmod` for each
file that it creates (5 to 8 ms, several times in every micro-batch), and writes a `.crc` file next to it. The
classes below call the operating system directly and write no checksums. They extend `LocalFileSystem`,
because Hadoop and Spark cast to that class, for example to upload a snapshot of a state store. They are
compiled by the compiler that Spark has for its generated code, and put into Hadoop's cache of file systems.
Code that bypasses the cache gets Hadoop's own class, which reads and writes the same files.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.spark.internals import java_context_of, jvm_of
from headrace.spark.java import (
    archive_options,
    driver_memory_gib,
    find_java,
    usable_cores,
    usable_memory_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from headrace.spark.java import Java


CLASS: Final = "headrace.LocalFiles"
SOURCE: Final = """
package headrace;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends org.apache.hadoop.fs.LocalFileSystem {
    public LocalFiles() {
        super(new RawLocalFiles());
        setWriteChecksum(false);
        setVerifyChecksum(false);
    }
}

class RawLocalFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws java.io.IOException {
        String text = permission.toString().substring(0, 9);
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
    }
}
"""


def install_local_files(session: SparkSession) -> None:
    """Make the JVM of `session` use these classes; a second call has no effect."""
    jvm = jvm_of(session)
    files, place = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI("file:///")
    given = java_context_of(session.sparkContext).hadoopConfiguration()
    ours = jvm.org.apache.hadoop.conf.Configuration(given)
    if files.get(place, ours).getClass().getName() == CLASS:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE)
    ours.setClassLoader(compiler.getClassLoader())
    ours.set("fs.file.impl", CLASS)
    # Every configuration uses the instance that is cached for the scheme: the next one that is created.
    files.get(place, ours).close()
    files.get(place, ours)


LOGGING: Final = Path(__file__).parent / "log4j2.properties"
PYTHON_START: Final = Path(__file__).parent / "python_start"
LOCAL_FILES: Final = "spark.hadoop.fs.file.impl"
"""A user's own class for local files; without it the class above is used."""
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def settings(cores: int | None = None) -> dict[str, str]:
    """The settings of every session, by Spark's names; `cores` is how many tasks run at once."""
    fixed = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        # Over TCP each Python task waits twice for a delayed acknowledgement: 80 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        # A Python process that starts on a busy machine may take longer than the usual 15 s to call back.
        "spark.python.authenticate.socketTimeout": "120s",
        # Workers are forked from a process that has already loaded what they need.
        "spark.python.daemon.module": "headrace.spark.daemon",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
        # A plan is described for the UI in every micro-batch, seen or not: the short form is 4 ms faster.
        "spark.sql.ui.explainMode": "simple",
        "spark.ui.showConsoleProgress": "false",
        # When a query is stopped, Spark searches the text of the failure by a regular expression that needs a
        # stack as deep as the text is long.
        JAVA_OPTIONS: f"-Xss16m -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    }
    return fixed if cores is None else fixed | {"spark.sql.shuffle.partitions": str(cores)}


def local_settings(cores: int) -> dict[str, str]:
    """Additional settings of a session on this machine."""
    return {
        "spark.driver.memory": f"{driver_memory_gib(usable_memory_bytes())}g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The driver listens on two ports of the loopback address, which every user of this machine reaches.
        # With a local master Spark makes up a secret for them at each start.
        "spark.authenticate": "true",
        "spark.default.parallelism": str(cores),
        # With our local files the checkpoint's small files cost 3 ms instead of 90 ms a micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def local_session(
    name: str, *, cores: int | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session in this process, on `cores` of this machine, with `format("headrace")` registered."""
    cores = cores or usable_cores()
    session = _open(name, f"local[{cores}]", settings(cores) | local_settings(cores), more or {})
    if LOCAL_FILES not in (more or {}):
        install_local_files(session)
    return session


def cluster_session(
    name: str, master: str, *, cores: int | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session whose tasks run on the cluster at `master`, with `format("headrace")` registered.

    The workers need Headrace in the Python that `PYSPARK_PYTHON` names, and a checkpoint folder that all of
    them see. `cores` is how many tasks run at once in the whole cluster.
    """
    return _open(name, master, settings(cores), more or {})


def open_session(
    name: str, *, master: str | None = None, cores: int | None = None, more: Mapping[str, str] | None = None
) -> SparkSession:
    """A session at `master`: on this machine if it is None or `local`, with or without a number."""
    if master is None or is_on_this_machine(master):
        return local_session(name, cores=cores or cores_of(master), more=more)
    return cluster_session(name, master, cores=cores, more=more)


def is_on_this_machine(master: str) -> bool:
    """Whether the tasks of a session at `master` run in the driver's own process."""
    return master == "local" or master.startswith("local[")


def cores_of(master: str | None) -> int | None:
    """The number in `local[number]`.

    >>> [cores_of(master) for master in ("local[4]", "local[*]", "local", None)]
    [4, None, 1, None]
    """
    if master == "local":
        return 1
    number = (master or "").removeprefix("local[").split(",")[0].rstrip("]")
    return int(number) if number.isdigit() else None


def _open(name: str, master: str, fixed: Mapping[str, str], more: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    from headrace.spark import register

    java = find_java()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in merged_settings(_archived(java, fixed), more).items():
        builder = builder.config(key, value)
    with _starting_environment(java):
        session = builder.getOrCreate()
    register(session)
    return session


def _archived(java: Java, fixed: Mapping[str, str]) -> dict[str, str]:
    """The settings, with the class archive in the options of the JVM."""
    import pyspark

    home = Path(pyspark.__file__).parent
    options = archive_options(
        java, home / "jars", settings=Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    )
    return {**fixed, JAVA_OPTIONS: " ".join([fixed[JAVA_OPTIONS], *options])}


def merged_settings(fixed: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both; `more` takes precedence, and options of the JVM are joined."""
    merged = {**fixed, **more}
    if JAVA_OPTIONS in more:
        merged[JAVA_OPTIONS] = f"{fixed[JAVA_OPTIONS]} {more[JAVA_OPTIONS]}"
    return merged


@contextmanager
def _starting_environment(java: Java) -> Iterator[None]:
    """Set the environment for starting Spark's JVM; variables only for the JVM are restored afterwards."""
    # Spark reads this variable whenever it prepares a function for its workers.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    python_path = [str(PYTHON_START), os.environ.get("PYTHONPATH", "")]
    for_jvm = java.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, python_path))}
    before = {name: os.environ.get(name) for name in for_jvm}
    os.environ.update(for_jvm)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
