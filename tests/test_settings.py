"""Who wins: arguments over the environment, and that over the file."""

from pathlib import Path

import pytest

from headrace.errors import Misuse
from headrace.settings import Settings

FILE = """
[broker]
address = "kafka-1:9092"
[spark]
master = "spark://host:7077"
[spark.settings]
"spark.executor.memory" = "2g"
"spark.ui.enabled" = true
[jobs]
state = "state"
checkpoints = "hdfs:///streams"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.toml").write_text(FILE)
    (tmp_path / "inner").mkdir()
    return tmp_path / "inner"


def test_the_file_counts_where_nothing_else_was_said(project: Path) -> None:
    settings = Settings.read(environment={}, folder=project)
    assert str(settings.broker()) == "kafka-1:9092"
    assert settings.master() == "spark://host:7077"
    assert settings.state() == project.parent / "state"
    assert settings.checkpoints() == "hdfs:///streams"
    assert settings.spark() == {"spark.executor.memory": "2g", "spark.ui.enabled": "true"}


def test_the_environment_wins_over_the_file_and_arguments_over_both(project: Path) -> None:
    environment = {
        "HEADRACE_MASTER": "local[2]",
        "HEADRACE_STATE": "elsewhere",
        "HEADRACE_CHECKPOINTS": "s3a://x",
    }
    settings = Settings.read(environment=environment, folder=project)
    assert settings.master() == "local[2]"
    assert settings.master("local[1]") == "local[1]"
    assert settings.state() == project / "elsewhere"
    assert settings.state("/here") == Path("/here")
    assert settings.checkpoints() == "s3a://x"


def test_the_address_of_a_target_is_named_in_the_environment_or_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[postgres]\nurl = "postgresql://a/b"')
    settings = Settings.read(environment={"HEADRACE_REDIS": "redis://c"}, folder=tmp_path)
    assert settings.url("postgres") == "postgresql://a/b"
    assert settings.url("postgres", "postgresql://d") == "postgresql://d"
    assert settings.url("redis") == "redis://c"
    assert settings.url("sqlite") is None
    (tmp_path / "headrace.toml").write_text("[postgres]\nurl = 5432")
    with pytest.raises(Misuse, match=r'write \[postgres\] and below it url = "'):
        Settings.read(environment={}, folder=tmp_path).url("postgres")


def test_without_anything_it_is_this_machine_and_this_folder(tmp_path: Path) -> None:
    settings = Settings.read(environment={}, folder=tmp_path)
    assert settings.broker() is None
    assert settings.master() == "local[*]"
    assert settings.state() == tmp_path / ".headrace"
    assert settings.checkpoints() is None
    assert settings.spark() == {}


@pytest.mark.parametrize(
    "content",
    ["spark = 1\n", "[spark]\nmaster = 2\n", "[spark.settings.spark]\nui = 1\n", "[spark]\nsettings = 1\n"],
)
def test_what_makes_no_sense_is_explained(tmp_path: Path, content: str) -> None:
    (tmp_path / "headrace.toml").write_text(content)
    settings = Settings.read(environment={}, folder=tmp_path)
    with pytest.raises(Misuse, match=r"headrace\.toml"):
        settings.master(), settings.spark()


def test_the_file_next_to_the_pipeline_counts_wherever_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/headrace.toml").write_text('[jobs]\nstate = "kept"\n[postgres]\nurl = "postgresql://a"')
    settings = Settings.read(environment={}, folder=tmp_path, project=tmp_path / "shop")
    assert settings.state() == tmp_path / "shop/kept"
    assert settings.url("postgres") == "postgresql://a"
    assert settings.state("here") == tmp_path / "here"
    environment = {"HEADRACE_PROJECT": str(tmp_path / "shop"), "HEADRACE_STATE": "there"}
    settings = Settings.read(environment=environment, folder=tmp_path)
    assert settings.url("postgres") == "postgresql://a"
    assert settings.state() == tmp_path / "there"


def test_the_state_of_a_project_without_a_file_is_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    settings = Settings.read(environment={}, folder=tmp_path, project=tmp_path / "shop")
    assert settings.state() == tmp_path / "shop/.headrace"
