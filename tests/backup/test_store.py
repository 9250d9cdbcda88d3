"""The folder of backups: what is stored once, what is not read again, and what damage is found."""

import os
from pathlib import Path

import pytest

from headrace.backup.creation import Sources, create_backup
from headrace.backup.restoration import Targets, restore_backup
from headrace.backup.store import CHUNK_BYTES, BackupDamaged, BackupInProgress, BackupStore
from headrace.errors import Misuse
from headrace.storage.config import TopicConfig
from headrace.storage.folder import DataFolder
from tests.storage.batches import NOW, filler, read_values

CONFIG = TopicConfig(segment_bytes=1024)


def fill(data: Path, count: int) -> list[bytes]:
    """Append records to a topic of a broker that does not run."""
    folder = DataFolder(data)
    log = folder.open("orders", 0, CONFIG, NOW)
    for number in range(log.end_offset, log.end_offset + count):
        log.append(filler(number), NOW)
    values: list[bytes] = read_values(log)
    folder.close()
    return values


def values_in(data: Path) -> list[bytes]:
    folder = DataFolder(data)
    values: list[bytes] = read_values(folder.open("orders", 0, CONFIG, NOW))
    folder.close()
    return values


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data", 50)
    return tmp_path / "data"


def test_the_data_of_a_stopped_broker_are_restored_as_they_were(data: Path, tmp_path: Path) -> None:
    expected = values_in(data)
    create_backup(tmp_path / "backups", Sources(data=data))
    restore_backup(tmp_path / "backups", Targets(data=tmp_path / "new"))
    assert values_in(tmp_path / "new") == expected
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_second_backup_adds_only_what_has_changed(data: Path, tmp_path: Path) -> None:
    first = create_backup(tmp_path / "backups", Sources(data=data))
    fill(data, 1)
    second = create_backup(tmp_path / "backups", Sources(data=data))
    third = create_backup(tmp_path / "backups", Sources(data=data))
    assert first.new_bytes > second.new_bytes > 0
    assert third.new_bytes == 0
    assert third.total_bytes == second.total_bytes


def test_each_backup_has_the_data_of_its_own_moment(data: Path, tmp_path: Path) -> None:
    first = create_backup(tmp_path / "backups", Sources(data=data))
    expected = values_in(data)
    fill(data, 20)
    create_backup(tmp_path / "backups", Sources(data=data))
    restore_backup(tmp_path / "backups", Targets(data=tmp_path / "new"), first.id)
    assert values_in(tmp_path / "new") == expected


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"content")
    os.utime(source, ns=(0, 1_000_000_000))
    store = BackupStore.create(tmp_path / "backups")
    known = store.store(source, "file", None, None)
    assert store.store(source, "file", None, known) is known
    os.utime(source, ns=(0, 2_000_000_000))
    assert store.store(source, "file", None, known) is not known


def test_a_file_that_changed_just_now_is_read_again(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"content")
    store = BackupStore.create(tmp_path / "backups")
    known = store.store(source, "file", None, None)
    source.write_bytes(b"CONTENT")
    assert store.store(source, "file", None, known).chunks != known.chunks


def test_the_unchanged_beginning_of_a_large_file_is_stored_once(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"a" * CHUNK_BYTES)
    store = BackupStore.create(tmp_path / "backups")
    store.store(source, "file", None, None)
    with source.open("ab") as file:
        file.write(b"more")
    before = store.new_bytes
    store.store(source, "file", None, None)
    assert store.new_bytes - before == 4


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damage_of_a_backup_is_found_and_nothing_is_restored(data: Path, tmp_path: Path, damage: str) -> None:
    manifest = create_backup(tmp_path / "backups", Sources(data=data))
    name = max(manifest.files, key=lambda file: file.size).chunks[0]
    chunk = tmp_path / "backups/chunks" / name[:2] / name
    if damage == "missing":
        chunk.unlink()
    else:
        chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with pytest.raises(BackupDamaged, match=name):
        BackupStore.open(tmp_path / "backups").check(manifest.files)
    with pytest.raises(BackupDamaged, match=name):
        restore_backup(tmp_path / "backups", Targets(data=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_old_backups_are_deleted_with_what_only_they_need(data: Path, tmp_path: Path) -> None:
    create_backup(tmp_path / "backups", Sources(data=data))
    fill(data, 20)
    create_backup(tmp_path / "backups", Sources(data=data))
    store = BackupStore.open(tmp_path / "backups")
    before = len(list((tmp_path / "backups/chunks").glob("*/*")))
    assert len(store.prune(1)) == 1
    assert len(list((tmp_path / "backups/chunks").glob("*/*"))) < before
    restore_backup(tmp_path / "backups", Targets(data=tmp_path / "new"))
    assert values_in(tmp_path / "new") == values_in(data)


def test_a_restore_into_a_folder_with_files_is_refused(data: Path, tmp_path: Path) -> None:
    create_backup(tmp_path / "backups", Sources(data=data))
    with pytest.raises(Misuse, match="has files already"):
        restore_backup(tmp_path / "backups", Targets(data=data))


def test_two_backups_at_once_in_one_folder_are_refused(data: Path, tmp_path: Path) -> None:
    store = BackupStore.create(tmp_path / "backups")
    with store.locked(), pytest.raises(BackupInProgress, match="another process"):
        create_backup(tmp_path / "backups", Sources(data=data))


@pytest.mark.parametrize(("name", "sentence"), [("empty", "no backups"), ("newer", "format 99")])
def test_a_folder_that_is_no_target_of_backups_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    target = tmp_path / name
    target.mkdir()
    if name == "newer":
        (target / "format").write_text("99")
    with pytest.raises(Misuse, match=sentence):
        restore_backup(target, Targets(data=tmp_path / "new"))


def test_a_folder_with_other_files_is_not_used_for_backups(data: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/letter").touch()
    with pytest.raises(Misuse, match="no backups"):
        create_backup(tmp_path / "documents", Sources(data=data))


def test_a_backup_of_something_else_than_a_data_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="not the data folder"):
        create_backup(tmp_path / "backups", Sources(data=tmp_path))


def test_checkpoints_that_cannot_be_copied_are_refused_or_left_out_by_name(
    data: Path, tmp_path: Path
) -> None:
    target = tmp_path / "backups"
    job = tmp_path / "state" / "shop" / "totals"
    job.mkdir(parents=True)
    (job / "lock").touch()
    (job / "checkpoints").write_text("hdfs://namenode/checkpoints/shop/totals")
    with pytest.raises(Misuse, match=r"not mounted here: shop\.totals"):
        create_backup(target, Sources(data=data, state=tmp_path / "state"))
    made = create_backup(target, Sources(data=data, state=tmp_path / "state", leaves_out_remote=True))
    assert (made.jobs, made.left_out) == ((), ("shop.totals",))
