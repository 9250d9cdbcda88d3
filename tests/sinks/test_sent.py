"""The journal of what was sent, and the ids of messages."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.folders import LocalFolder
from headrace.sinks.sent import FILE, MessageIds, SentMessages
from headrace.sinks.sink import SinkContext

CONTEXT = SinkContext(
    job="shop.alerts", generation=1, schema=pa.schema({}), folder=LocalFolder(Path()), state=Path()
)


def test_sent_messages_are_known_after_a_restart(tmp_path: Path) -> None:
    sent = SentMessages(LocalFolder(tmp_path))
    sent.finish(0)
    sent.add(1, "a-0")
    again = SentMessages(LocalFolder(tmp_path))
    assert (again.newest, again.ids(1), again.ids(2)) == (0, {"a-0"}, set())
    again.finish(1)
    last = SentMessages(LocalFolder(tmp_path))
    assert (last.newest, last.ids(1)) == (1, set())


def test_a_truncated_line_does_not_affect_others(tmp_path: Path) -> None:
    sent = SentMessages(LocalFolder(tmp_path))
    sent.add(0, "a-0")
    sent.add(0, "b-0")
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        cut = SentMessages(LocalFolder(tmp_path))
        kept = cut.ids(0)
        assert kept <= {"a-0", "b-0"}
        cut.add(0, "c-0")
        again = SentMessages(LocalFolder(tmp_path))
        assert again.ids(0) == kept | {"c-0"}


def test_the_file_stays_small(tmp_path: Path) -> None:
    sent = SentMessages(LocalFolder(tmp_path), times=2)
    for batch in range(5):
        for number in range(20):
            sent.add(batch, f"a-{number}")
        sent.finish(batch)
    assert (tmp_path / FILE).stat().st_size < 200
    again = SentMessages(LocalFolder(tmp_path), times=2)
    assert len(again.times) == 2


def test_retry_after_holds_across_a_restart(tmp_path: Path) -> None:
    sent = SentMessages(LocalFolder(tmp_path))
    sent.hold(1_000_000)
    again = SentMessages(LocalFolder(tmp_path))
    assert again.hold_until == pytest.approx(sent.hold_until)


@given(contents=st.lists(st.sampled_from("abc"), max_size=8), data=st.data())
def test_ids_do_not_depend_on_the_order(contents: list[str], data: st.DataObject) -> None:
    ids = MessageIds(CONTEXT, 7, ()).of(contents)
    shuffled = data.draw(st.permutations(contents))
    assert len(set(ids)) == len(ids)
    assert sorted(MessageIds(CONTEXT, 7, ()).of(shuffled)) == sorted(ids)
    assert not set(MessageIds(CONTEXT, 8, ()).of(contents)) & set(ids)


def test_ids_of_sent_messages_are_assigned_first_among_equal_messages() -> None:
    first, second = MessageIds(CONTEXT, 0, ()).of(["a", "a"])
    assert MessageIds(CONTEXT, 0, {second}).of(["a"]) == [second]  # the first one was given up meanwhile
    assert set(MessageIds(CONTEXT, 0, {second}).of(["a", "a"])) == {first, second}
