import pytest

from headrace.storage.partition import PartitionLog
from headrace.testing import EmbeddedBroker
from tests.cli.terminal import Terminal


@pytest.mark.parametrize("failures", [1, 2])
def test_a_question_that_got_no_answer_is_asked_again(
    headrace_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A lost answer must not be taken for the end of the topic: the group would skip records."""
    search_time, left = PartitionLog.search_time, [failures]

    def search_time_or_fail(self: PartitionLog, *arguments: int) -> object:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a fault of the broker, which closes the connection")
        return search_time(self, *arguments)

    monkeypatch.setattr(PartitionLog, "search_time", search_time_or_fail)
    terminal = Terminal(headrace_broker.bootstrap)
    terminal.do("topic", "create", "t")
    terminal.do("produce", "t", stdin="a\nb\n")
    (move,) = terminal.do("group", "seek", "g", "--topic", "t", "--to", "-1h", "--json").json
    assert (left, move["after"]) == ([0], 0)
