"""The archive of tiered storage: an object store, addressed by a URL.

| URL | store |
|---|---|
| `s3://bucket/prefix` | Amazon S3, or a server with its protocol at `AWS_ENDPOINT_URL` |
| `gs://bucket/prefix`, `az://container/prefix` | Google Cloud Storage, Azure Blob Storage |
| `file:///path` | a folder, for example on a network file system |

Credentials come from the standard environment variables of the store (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, …)
or from the machine's role. All methods block: the broker calls them in threads.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from headrace.storage.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from obstore.store import ObjectStore

SCHEMES: Final = ("s3://", "gs://", "az://", "file:///")
DELETE_AT_ONCE: Final = 1000
"""The most objects in one request, as in S3."""

DEFAULT_TIMEOUT: Final = timedelta(seconds=30)


class ArchiveStore(Protocol):
    """Named objects. A put is atomic: readers see the old object or the new one."""

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        """Store bytes, or many of them in parts, under a name; replaces an object of that name."""
        ...

    def get(self, name: str) -> bytes:
        """The content of an object."""
        ...

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """A part of an object."""
        ...

    def size(self, name: str) -> int | None:
        """The size of an object; None if there is none of that name."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """The names of the objects in a folder, in any order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        ...


class ObjectStoreArchive:
    """An archive in an object store or a folder."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        """Store bytes, at once or in parts."""
        import obstore

        with _explained(f"{name} could not be stored"):
            obstore.put(self._store, name, data)

    def get(self, name: str) -> bytes:
        """The content of an object."""
        import obstore

        with _explained(f"{name} could not be read"):
            return bytes(obstore.get(self._store, name).bytes())

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """A part of an object."""
        import obstore

        with _explained(f"{name} could not be read"):
            return bytes(obstore.get_range(self._store, name, start=start, length=size))

    def size(self, name: str) -> int | None:
        """The size of an object."""
        import obstore

        with _explained(f"{name} could not be read"):
            try:
                return obstore.head(self._store, name)["size"]
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[str]:
        """The names of the objects in a folder."""
        import obstore

        with _explained(f"{prefix} could not be listed"):
            for page in obstore.list(self._store, prefix=prefix):
                yield from (each["path"] for each in page)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        import obstore

        left = list(names)
        with _explained("objects could not be deleted"):
            while left:
                some, left = left[:DELETE_AT_ONCE], left[DELETE_AT_ONCE:]
                try:
                    obstore.delete(self._store, some)
                except FileNotFoundError:
                    self._delete_singly(some)

    def _delete_singly(self, names: Iterable[str]) -> None:
        # A folder stops at the first file that does not exist.
        import obstore

        for name in names:
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                continue


@contextmanager
def _explained(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (OSError, BaseError) as fault:
        reason = str(fault).split("\n", 1)[0]
        raise ArchiveError(f"archive: {what}: {reason}") from fault


def check_archive_url(url: str) -> str:
    """The URL; raises `ArchiveError` if no archive can have it."""
    if not url.startswith(SCHEMES):
        raise ArchiveError(
            f"{url!r} is not an archive: use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX "
            "or file:///FOLDER"
        )
    return url


def open_archive(url: str, *, timeout: timedelta | None = None) -> ArchiveStore:
    """The archive at a URL; no connection is made before its first use.

    A request that takes longer than `timeout` fails, and is retried a few times (default: 30 seconds).
    """
    # A large library, which only brokers with an archive need.
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore

    check_archive_url(url)
    try:
        if url.startswith("file://"):
            return ObjectStoreArchive(LocalStore.from_url(url, mkdir=True))
        return ObjectStoreArchive(_connect(url, timeout or DEFAULT_TIMEOUT))
    except (OSError, ValueError, BaseError) as fault:
        raise ArchiveError(f"archive {url} cannot be used: {fault}") from fault


def _connect(url: str, timeout: timedelta) -> ObjectStore:
    from obstore.store import S3Store, from_url

    if not url.startswith("s3://"):
        return from_url(url, client_options={"timeout": timeout})
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    # The server compares the checksum with what it received.
    return S3Store.from_url(
        url,
        config={"checksum_algorithm": "SHA256", **({"endpoint": endpoint} if endpoint else {})},
        client_options={"timeout": timeout, "allow_http": endpoint.startswith("http://")},
        retry_config={"max_retries": 3, "retry_timeout": timeout},
    )
