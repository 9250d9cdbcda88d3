"""Every archive keeps the contract of `ArchiveStore`: a folder, and a server with S3's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.storage.archive_store import ArchiveStore, check_archive_url, open_archive
from headrace.storage.errors import ArchiveError
from tests.storage.archives import archive_closed, cache_of
from tests.storage.batches import NOW, filler, open_log, read_records, reopen
from tools.s3_server import PROGRAM, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    if not PROGRAM.exists():
        pytest.fail("there is no S3 server: run make test-s3")
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    if request.param == "file":
        return open_archive((tmp_path / "archive").as_uri())
    server: S3Server = request.getfixturevalue("s3_server")
    return open_archive(f"{server.url}/{tmp_path.name}")


def test_an_object_is_stored_and_read_whole_and_in_parts(archive: ArchiveStore) -> None:
    archive.put("folder/name", b"content")
    assert archive.get("folder/name") == b"content"
    assert archive.get_range("folder/name", 1, 3) == b"ont"
    assert archive.size("folder/name") == 7


def test_a_large_object_is_stored_in_parts(archive: ArchiveStore) -> None:
    parts = [bytes([number]) * (6 * 2**20) for number in range(3)]
    archive.put("large", iter(parts))
    assert archive.size("large") == 18 * 2**20
    assert archive.get_range("large", 6 * 2**20 - 1, 2) == b"\0\1"


def test_an_object_is_replaced(archive: ArchiveStore) -> None:
    archive.put("name", b"old")
    archive.put("name", b"new")
    assert archive.get("name") == b"new"


def test_a_folder_is_listed_without_its_neighbors(archive: ArchiveStore) -> None:
    for name in ("one/a", "one/deep/b", "other/c"):
        archive.put(name, b"")
    assert set(archive.list("one/")) == {"one/a", "one/deep/b"}
    assert list(archive.list("none/")) == []


def test_objects_are_deleted_whether_they_exist_or_not(archive: ArchiveStore) -> None:
    archive.put("one", b"")
    archive.put("two", b"")
    archive.delete(["one", "never", "two"])
    assert archive.size("one") is archive.size("two") is None
    archive.delete([])


def test_an_object_that_is_missing_is_an_error_of_the_archive(archive: ArchiveStore) -> None:
    with pytest.raises(ArchiveError, match="missing"):
        archive.get("missing")
    with pytest.raises(ArchiveError, match="missing"):
        archive.get_range("missing", 0, 1)


def test_a_partition_is_read_back(archive: ArchiveStore, tmp_path: Path) -> None:
    log = open_log(
        tmp_path / "log",
        segment_bytes=1024,
        remote_storage_enable=True,
        local_retention_bytes=0,
        remote_cache=cache_of(archive, tmp_path / "cache"),
    )
    for number in range(30):
        log.append(filler(number), NOW)
    archive_closed(log, archive)
    log.apply_retention(NOW)
    assert [record.offset for record in read_records(reopen(log))] == list(range(30))


@pytest.mark.parametrize("url", ["", "/folder", "file://relative", "http://host/bucket", "s3:bucket"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match="is not an archive"):
        check_archive_url(url)
