"""What the store asks of a folder, of a real one and of the one in memory that tests use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.state.files import BadState, LocalStateFiles, StateFiles, local_folder, state_files
from tests.state.memory_files import MemoryStateFiles

MAKERS: dict[str, Callable[[Path], StateFiles]] = {
    "local": lambda path: LocalStateFiles(path / "new" / "folder"),
    "memory": lambda path: MemoryStateFiles(str(path)),
}


@pytest.fixture(params=MAKERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> StateFiles:
    return MAKERS[request.param](tmp_path)


def write(files: StateFiles, name: str, content: bytes) -> None:
    with files.create(name) as file:
        file.write(content)


def test_a_file_is_there_when_it_is_complete(files: StateFiles) -> None:
    assert files.names() == []
    with files.create("a") as file:
        file.write(b"one")
        assert files.names() == []
    assert (files.names(), files.read("a"), files.map("a").to_pybytes()) == (["a"], b"one", b"one")
    files.sync("a")


def test_a_file_is_replaced_as_a_whole(files: StateFiles) -> None:
    write(files, "a", b"one")
    before = files.map("a")
    write(files, "a", b"two")
    assert (before.to_pybytes(), files.read("a")) == (b"one", b"two")


def test_a_file_whose_writing_failed_is_not_there(files: StateFiles) -> None:
    with pytest.raises(ZeroDivisionError), files.create("a") as file:
        file.write(bytes(1 // 0))
    assert files.names() == []


def test_a_missing_file_is_an_error_that_names_it(files: StateFiles) -> None:
    for look in (files.read, files.map):
        with pytest.raises(BadState, match=f"{files}/a is missing.*reset the job"):
            look("a")


def test_a_deleted_file_can_be_read_by_its_reader(files: StateFiles) -> None:
    write(files, "a", b"one")
    mapped = files.map("a")
    for _ in range(2):
        files.delete("a")
    assert (files.names(), mapped.to_pybytes()) == ([], b"one")


def test_folders_have_their_own_files(files: StateFiles) -> None:
    write(files.child("0"), "a", b"one")
    assert (files.names(), files.child("0").read("a")) in (([], b"one"), (["0"], b"one"))
    assert str(files.child("0")) == f"{files}/0"


def test_locations_are_paths_or_urls_of_files(tmp_path: Path) -> None:
    write(state_files(f"file://{tmp_path}"), "a", b"one")
    assert state_files(str(tmp_path)).read("a") == b"one"
    assert local_folder("file:///state/a%20b") == Path("/state/a b")
