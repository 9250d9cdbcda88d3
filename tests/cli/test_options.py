import os
import subprocess
import sys
from collections.abc import Callable

from tests.cli.terminal import DEADLINE_S, Terminal

NewName = Callable[[], str]


def completed(bootstrap: str, *words: str) -> tuple[list[str], str]:
    """What bash would offer after these words, and what appeared on standard error."""
    environment = {
        **os.environ,
        "HEADRACE_BROKER": bootstrap,
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "import sys; sys.argv[0] = 'headrace'; from headrace.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return result.stdout.split(), result.stderr


def test_topics_are_completed_from_the_broker(terminal: Terminal, topic: str) -> None:
    assert completed(terminal.bootstrap, "headrace", "consume", topic[:6]) == ([topic], "")
    assert completed("127.0.0.1:1", "headrace", "consume", "--broker", terminal.bootstrap, topic[:6]) == (
        [topic],
        "",
    )


def test_groups_are_completed_from_the_broker(terminal: Terminal, topic: str, new_name: NewName) -> None:
    group = new_name()
    terminal.do("group", "seek", group, "--topic", topic, "--to", "start")
    assert completed(terminal.bootstrap, "headrace", "group", "describe", group[:6]) == ([group], "")


def test_without_a_broker_nothing_is_completed_and_nothing_said() -> None:
    assert completed("127.0.0.1:1", "headrace", "consume", "a") == ([], "")


def test_commands_are_completed_without_a_broker() -> None:
    assert completed("127.0.0.1:1", "headrace", "topic", "de")[0] == ["describe", "delete"]
