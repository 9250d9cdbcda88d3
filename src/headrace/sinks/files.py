"""Files as an output: `into=files("s3://lake/orders", partition_by="day")`.

```text
 s3://lake/orders/day=2026-01-01/shop.daily-1-41-0.parquet   committed files
 s3://lake/.orders.headrace/shop.daily/                      hidden from readers of the folder
     staged/3f2c….parquet                                    written by tasks
     batches/000000000000001/000000000041.json               the manifest of batch 41, and its marker
```

Tasks write their files into a hidden folder next to that of the output. The driver commits a batch by
creating its manifest, which lists all files with the names that they get. That is one atomic step: a manifest
that exists is never replaced, so of two drivers that commit the same batch only one succeeds. Then the files
are moved to their final names. A driver that dies while it moves them is followed by one that moves the rest.

A move is a rename in a folder, and a copy within the store in an object store, which has no rename. Every
file appears complete. The files of one batch appear one after the other.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args
from urllib.parse import quote, urlsplit
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from headrace.errors import HeadraceError, Misuse
from headrace.folders import local_path, sync_directory
from headrace.sinks.rows import format_value
from headrace.sinks.sink import IncompatibleTarget, TargetUnavailable, WriterFenced, require_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from obstore.store import ObjectStore

    from headrace.sinks.sink import SinkContext, StagingContext
    from headrace.sinks.staging import StagedBatch

Format = Literal["parquet"]
SCHEMES: Final = ("s3", "gs", "az")
STAGED: Final = "staged"
BATCHES: Final = "batches"
NUMBER: Final = "_headrace_number"
KEPT_MANIFESTS: Final = 100
"""Manifests of old batches are kept: a driver that was suspended does not commit one of them again."""
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark, DuckDB and Polars read as null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSink:
    """Files in a folder or an object store; created by `files(…)`."""

    location: str
    format: Format = "parquet"
    partition_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for display."""
        return f"files {self.location}"

    @property
    def reads_staged_rows(self) -> bool:
        """No row is rejected, and written files are not lost."""
        return False

    def open(self, context: SinkContext) -> FilesWriter:
        """Move files that an earlier run has committed to their names, if it died meanwhile."""
        require_columns(self.name, self.partition_by, context.schema.names)
        if len(self.partition_by) == len(context.schema.names):
            raise IncompatibleTarget(
                f"{self.name}: partition_by= names all columns; leave one for the files."
            )
        writer = FilesWriter(self, context)
        writer.recover()
        return writer

    def open_stager(self, context: StagingContext) -> FilesStager:
        """Write files from a task."""
        return FilesStager(self, context.job)

    def discard(self, context: SinkContext, keep: Sequence[str]) -> None:
        """Delete files that were staged and not committed."""
        writer = FilesWriter(self, context)
        writer.recover()
        writer.discard(keep)


def files(
    location: str | Path,
    *,
    format: Format = "parquet",  # noqa: A002  the word of Spark's writers
    partition_by: str | Sequence[str] = (),
) -> FilesSink:
    """Files as an output of a job, with each row in one file exactly once.

    `location` is a folder, or `s3://bucket/prefix` (also `gs://` and `az://`). Rows are appended: each batch
    adds at least one file. With `partition_by`, files are in folders like `day=2026-01-01`, which Spark,
    DuckDB and Polars read as columns. Credentials of object stores come from their environment variables
    (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …) or from the machine's role.

    >>> files("s3://lake/orders", partition_by="day").name
    'files s3://lake/orders'
    """
    text = str(location).rstrip("/")
    path = local_path(text)
    parts = urlsplit(text)
    if path is None and (parts.scheme not in SCHEMES or not parts.netloc or not parts.path.strip("/")):
        raise Misuse(
            f"files: {text!r} is not a location: write a folder, or s3://bucket/prefix (also gs:// and az://)."
        )
    if path is not None and (not path.name or path.name.startswith((".", "_"))):
        raise Misuse(f"files: {text!r} is not the path of a folder that readers see: name one.")
    if format not in get_args(Format):
        raise Misuse(f'files: format {format!r} is unknown: use "parquet".')
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if len(set(columns)) != len(columns):
        raise Misuse(f"files: partition_by={columns!r}: name each column once.")
    return FilesSink(
        location=text if path is None else str(path.absolute()), format=format, partition_by=columns
    )


class StagedFileLost(HeadraceError):
    """A committed file is missing, under its staged name and its final one."""


class FilesStager:
    """Writes the rows of a task as files in the hidden folder."""

    def __init__(self, sink: FilesSink, job: str) -> None:
        self._sink = sink
        self._place = _Place.of(sink.location)
        self._folder = f"{self._place.hidden}/{job}/{STAGED}"

    def stage(self, rows: pa.Table) -> str:
        """Write a file for each partition; returns the staged names and the partitions."""
        written = []
        for partition, part in _partitions(rows, self._sink.partition_by):
            name = f"{self._folder}/{uuid4().hex}.parquet"
            out = pa.BufferOutputStream()
            pyarrow.parquet.write_table(part, out, compression="zstd")
            with _translated_errors(self._sink.name):
                self._place.store.put(name, out.getvalue().to_pybytes())
            written.append([name, partition])
        return json.dumps(written)

    def close(self) -> None:
        """Nothing to close."""


def _partitions(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition, in their order, and its folder."""
    if not columns:
        yield "", rows
        return
    names = list(columns)
    numbered = rows.select(names).append_column(NUMBER, pa.array(np.arange(len(rows))))
    groups = numbered.group_by(names, use_threads=False).aggregate([(NUMBER, "list")])
    rest = rows.drop_columns(names)
    for values, numbers in zip(groups.select(names).to_pylist(), groups[f"{NUMBER}_list"], strict=True):
        yield (
            "/".join(f"{name}={_partition_value(values[name])}" for name in names),
            rest.take(numbers.values),
        )


def _partition_value(value: Any) -> str:
    return NULL_PARTITION if value is None else quote(format_value(value), safe=" ")


class FilesWriter:
    """Commits the files of one job."""

    def __init__(self, sink: FilesSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._place = _Place.of(sink.location)
        self._store = self._place.store
        self._folder = f"{self._place.hidden}/{context.job}"
        self._batches = f"{self._folder}/{BATCHES}/{context.generation:015}"

    def recover(self) -> None:
        """Move the files of the newest manifest: the driver that created it may have died meanwhile."""
        with _translated_errors(self._sink.name):
            for manifest in self._manifests()[-1:]:
                self._publish(manifest)

    def last_batch(self) -> int | None:
        """The batch of the newest manifest."""
        with _translated_errors(self._sink.name):
            manifests = self._manifests()
        return _batch_of(manifests[-1]) if manifests else None

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Create the manifest, and move the files to their names."""
        with _translated_errors(self._sink.name):
            newest = self.last_batch()
            if newest is not None and newest >= batch:
                return
            moves = self._moves(batch, staged)
            manifest = f"{self._batches}/{batch:012}.json"
            if self._store.create(manifest, json.dumps(moves).encode()):
                self._publish(manifest)
                self._store.delete(self._manifests()[:-KEPT_MANIFESTS])

    def discard(self, keep: Sequence[str]) -> None:
        """Delete staged files without a token."""
        with _translated_errors(self._sink.name):
            kept = {name for token in keep for name, _ in json.loads(token)}
            names = self._store.names(f"{self._folder}/{STAGED}")
            self._store.delete([name for name in names if name not in kept])

    def close(self) -> None:
        """Nothing to close."""

    def _moves(self, batch: int, staged: StagedBatch) -> list[list[str]]:
        """The staged name and the final one of each file."""
        stager = FilesStager(self._sink, self._context.job)
        tokens = [stager.stage(chunk.read()) if chunk.token is None else chunk.token for chunk in staged]
        written = [each for token in tokens for each in json.loads(token)]
        base = f"{self._context.job}-{self._context.generation}-{batch}"
        return [
            [name, "/".join(filter(None, [self._place.shown, partition, f"{base}-{number}.parquet"]))]
            for number, (name, partition) in enumerate(written)
        ]

    def _manifests(self) -> list[str]:
        """The manifests of this generation, oldest first; raises `WriterFenced` if there is a later one."""
        names = self._store.names(f"{self._folder}/{BATCHES}")
        later = [name for name in names if name.rpartition("/")[0] > self._batches]
        if later:
            raise WriterFenced(
                f"{self._sink.name}: a later generation of the job {self._context.job!r} has written files. "
                "Run each job once, with one state folder."
            )
        return sorted(name for name in names if name.startswith(f"{self._batches}/"))

    def _publish(self, manifest: str) -> None:
        for name, final in json.loads(self._store.read(manifest)):
            if not self._store.move(name, final) and not self._store.has(final):
                raise StagedFileLost(
                    f"{self._sink.name}: {final} was committed (manifest {manifest}), and neither it nor "
                    f"{name} exists. Restore one of them, or delete the manifest's entry to go on without."
                )


def _batch_of(manifest: str) -> int:
    return int(manifest.rpartition("/")[2].removesuffix(".json"))


class FileStore(Protocol):
    """Files by their names: paths from the root of a store."""

    def put(self, name: str, data: bytes) -> None:
        """Store a file durably."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a file atomically and durably; False if there is one of that name."""

    def move(self, name: str, final: str) -> bool:
        """Give a file another name; False if it does not exist."""

    def read(self, name: str) -> bytes:
        """The content of a file."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder and below."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A location: its store, the folder that readers see, and the hidden one next to it."""

    store: FileStore
    shown: str
    hidden: str

    @classmethod
    def of(cls, location: str) -> _Place:
        path = local_path(location)
        if path is not None:
            return cls(LocalFileStore(), str(path), str(path.with_name(f".{path.name}.headrace")))
        parts = urlsplit(location)
        folder, _, name = parts.path.strip("/").rpartition("/")
        hidden = "/".join(filter(None, [folder, f".{name}.headrace"]))
        return cls(ObjectFileStore(f"{parts.scheme}://{parts.netloc}"), parts.path.strip("/"), hidden)


class LocalFileStore:
    """Files of this machine, or of a mount; what it returns from is on disk."""

    def put(self, name: str, data: bytes) -> None:
        """Store a file durably."""
        path = Path(name)
        _make_folder(path.parent)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def create(self, name: str, data: bytes) -> bool:
        """Store a file atomically and durably; False if there is one of that name."""
        path = Path(name)
        _make_folder(path.parent)
        aside = path.with_name(f".{uuid4().hex}")
        self.put(str(aside), data)
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        sync_directory(path.parent)
        return True

    def move(self, name: str, final: str) -> bool:
        """Rename a file; False if it does not exist."""
        path = Path(final)
        _make_folder(path.parent)
        try:
            Path(name).rename(path)
        except FileNotFoundError:
            return False
        sync_directory(path.parent)
        return True

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return Path(name).read_bytes()

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return Path(name).exists()

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder and below, without temporary ones."""
        paths = (path for path in Path(folder).rglob("*") if not path.name.startswith("."))
        return [str(path) for path in paths if path.is_file()]

    def delete(self, names: Iterable[str]) -> None:
        """Delete files."""
        for name in names:
            Path(name).unlink(missing_ok=True)


def _make_folder(path: Path) -> None:
    """Create a folder with those above it, durably."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    sync_directory(path.parent)


class ObjectFileStore:
    """Objects of a bucket."""

    def __init__(self, url: str) -> None:
        from obstore.store import S3Store, from_url

        if not url.startswith("s3://"):
            self._store: ObjectStore = from_url(url)
            return
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        self._store = S3Store.from_url(
            url,
            config={"endpoint": endpoint} if endpoint else {},
            client_options={"allow_http": endpoint.startswith("http://")},
        )

    def put(self, name: str, data: bytes) -> None:
        """Store an object."""
        import obstore

        obstore.put(self._store, name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object; False if there is one of that name."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def move(self, name: str, final: str) -> bool:
        """Copy an object within the store, and delete the first one; False if it does not exist."""
        import obstore

        try:
            obstore.rename(self._store, name, final)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """The content of an object."""
        import obstore

        return bytes(obstore.get(self._store, name).bytes())

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        import obstore

        try:
            obstore.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """The names of all objects in a folder."""
        import obstore

        pages = obstore.list(self._store, prefix=f"{folder}/")
        return [each["path"] for page in pages for each in page]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        import obstore

        some = list(names)
        if some:
            obstore.delete(self._store, some)


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    """Raise `TargetUnavailable` for errors of the store."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (OSError, BaseError) as fault:
        reason = str(fault).partition("\n")[0]
        raise TargetUnavailable(f"{name}: {reason}") from fault
