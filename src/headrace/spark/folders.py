"""Folders of jobs on any file system that Spark reaches: HDFS, object stores, mounts that all workers see."""

from __future__ import annotations

import socket
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from headrace.errors import Misuse
from headrace.folders import LocalFolder, local_path
from headrace.spark.internals import array_of, hadoop
from headrace.spark.session import is_on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.folders import Folder


PARTS: Final = ".parts"
"""The suffix of the folder with the text appended to a file: object stores cannot append."""


def folder_at(location: str) -> Folder:
    """The folder at a path or URI."""
    path = local_path(location)
    return HadoopFolder(location) if path is None else LocalFolder(path)


class HadoopFolder:
    """A folder that the JVM reaches through Hadoop's `FileSystem`."""

    def __init__(self, location: str) -> None:
        self._jvm, configuration = hadoop()
        given = self._jvm.org.apache.hadoop.fs.Path(location)
        self._files = given.getFileSystem(configuration)
        self._path = self._files.makeQualified(given)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._files.getUri(), configuration
        )
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return str(self._path.toString())

    def child(self, name: str) -> HadoopFolder:
        """A folder in this one."""
        return HadoopFolder(f"{self}/{name}")

    def names(self) -> list[str]:
        """The names of its files and folders without hidden ones; empty if it does not exist."""
        return [name for name in self._names(self._path) if not name.startswith(".")]

    def read(self, name: str) -> str | None:
        """The content of a file, with what was appended; None if it does not exist."""
        whole = self._read(self._at(name))
        parts = self._at(f".{name}{PARTS}")
        texts = [self._read(self._at(part, parts)) or "" for part in sorted(self._names(parts))]
        return whole if whole is None and not texts else (whole or "") + "".join(texts)

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically: after a crash it has the old content or the new one."""
        self._put(self._at(name), text)
        parts = self._at(f".{name}{PARTS}")
        if self._files.exists(parts):
            self._files.delete(parts, True)

    def append(self, name: str, text: str) -> None:
        """Add to a file; what was added is stored when this returns."""
        with self._lock:
            parts = self._at(f".{name}{PARTS}")
            self._put(self._at(f"{len(self._names(parts)):010}", parts), text)

    def delete(self) -> None:
        """Delete the folder with its contents."""
        self._files.delete(self._path, True)

    def _at(self, name: str, folder: Any = None) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(folder or self._path, name)

    def _names(self, folder: Any) -> list[str]:
        if not self._files.exists(folder):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(folder))

    def _read(self, path: Any) -> str | None:
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _put(self, path: Any, text: str) -> None:
        aside = self._at(f".{path.getName()}.{uuid.uuid4().hex}", path.getParent())
        stream = self._files.create(aside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._context.rename(aside, path, self._overwrite())

    def _overwrite(self) -> Any:
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        return array_of(rename, [rename.OVERWRITE])


TASKS_PER_CORE: Final = 4
"""This many tasks for each core check the folder, so that no worker is likely to be left out."""


def check_shared(spark: SparkSession, place: str) -> None:
    """Refuse a checkpoint in a folder of the driver that workers do not see: their state would be lost.

    A path may be a shared mount, so the workers check it. Other file systems are opened by Spark.
    """
    parts = urlsplit(place)
    if is_on_this_machine(str(spark.sparkContext.master)) or parts.scheme not in ("", "file"):
        return
    folder = Path(parts.path).parent  # the checkpoint itself is created when the job's identity is written
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f".seen-{uuid4().hex}"
    token.touch()
    try:
        blind = machines_without(spark, token)
    finally:
        token.unlink(missing_ok=True)
    if blind:
        raise Misuse(
            f"the checkpoint of the job is at {place}, and {', '.join(blind)} cannot see that folder: each "
            "worker would keep its state on its own disk. Set `checkpoints` to a folder, such as a shared "
            "mount, that all machines see under the same path."
        )


def machines_without(spark: SparkSession, path: Path) -> list[str]:
    """The names of the machines that run tasks and do not see a file."""
    context = spark.sparkContext
    tasks = TASKS_PER_CORE * context.defaultParallelism
    answers = context.parallelize(range(tasks), tasks).map(lambda _: (socket.gethostname(), path.exists()))
    return sorted({machine for machine, sees in answers.collect() if not sees})
