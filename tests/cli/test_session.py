from pathlib import Path

import pytest

from headrace.cli.session import broker_address
from headrace.errors import Misuse


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder two levels below a `headrace.toml`."""
    (tmp_path / "headrace.toml").write_text('[broker]\naddress = "from-file:1"\n')
    inner = tmp_path / "jobs" / "daily"
    inner.mkdir(parents=True)
    return inner


def test_the_option_comes_first(project: Path) -> None:
    address = broker_address(
        "from-option:1", environment={"HEADRACE_BROKER": "from-environment:1"}, folder=project
    )
    assert str(address) == "from-option:1"
    assert address.origin == "from --broker"


def test_then_the_environment(project: Path) -> None:
    address = broker_address(None, environment={"HEADRACE_BROKER": "from-environment:1"}, folder=project)
    assert str(address) == "from-environment:1"
    assert address.origin == "from HEADRACE_BROKER in the environment"


def test_then_the_nearest_file(project: Path) -> None:
    address = broker_address(None, environment={}, folder=project)
    assert str(address) == "from-file:1"
    assert address.origin == f"from {project.parent.parent / 'headrace.toml'}"
    (project / "headrace.toml").write_text('[broker]\naddress = "nearer:1"\n')
    assert str(broker_address(None, environment={}, folder=project)) == "nearer:1"


def test_then_the_default(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[jobs]\n")
    address = broker_address(None, environment={"HEADRACE_BROKER": ""}, folder=tmp_path)
    assert str(address) == "127.0.0.1:9092"
    assert address.origin == "the default"


@pytest.mark.parametrize("content", ["[broker", "[broker]\naddress = 9092\n", "broker = 3\n", "\xff"])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "headrace.toml").write_bytes(content.encode("latin-1"))
    with pytest.raises(Misuse, match=r"headrace\.toml"):
        broker_address(None, environment={}, folder=tmp_path)


@pytest.mark.parametrize(
    "text", ["", ":9092", "host:", "host:port", "host:0", "host:65536", "http://host:1/path", "::1"]
)
def test_an_address_that_is_none_is_refused_with_its_origin(text: str) -> None:
    with pytest.raises(Misuse, match="from --broker"):
        broker_address(text)


def test_several_addresses_are_one_cluster() -> None:
    assert str(broker_address("a:1, b ,[::1]:3")) == "a:1,b:9092,[::1]:3"
