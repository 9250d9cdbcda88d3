"""The journal of what was sent, and the ids of messages."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.folders import LocalFolder
from headrace.sinks.sent import FILE, Sent, identities
from headrace.sinks.sink import Place

PLACE = Place(job="shop.alerts", generation=1, schema=pa.schema({}), folder=LocalFolder(Path()), state=Path())


def test_what_was_sent_is_known_after_a_restart(tmp_path: Path) -> None:
    sent = Sent(LocalFolder(tmp_path))
    sent.finish(0)
    sent.add(1, "a-0")
    again = Sent(LocalFolder(tmp_path))
    assert (again.newest, again.ids(1), again.ids(2)) == (0, {"a-0"}, set())
    again.finish(1)
    last = Sent(LocalFolder(tmp_path))
    assert (last.newest, last.ids(1)) == (1, set())


def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    sent = Sent(LocalFolder(tmp_path))
    sent.add(0, "a-0")
    sent.add(0, "b-0")
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        cut = Sent(LocalFolder(tmp_path))
        kept = cut.ids(0)
        assert kept <= {"a-0", "b-0"}
        cut.add(0, "c-0")
        again = Sent(LocalFolder(tmp_path))
        assert again.ids(0) == kept | {"c-0"}


def test_the_journal_stays_small(tmp_path: Path) -> None:
    sent = Sent(LocalFolder(tmp_path), times=2)
    for batch in range(5):
        for number in range(20):
            sent.add(batch, f"a-{number}")
        sent.finish(batch)
    assert (tmp_path / FILE).stat().st_size < 200
    again = Sent(LocalFolder(tmp_path), times=2)
    assert len(again.times) == 2


def test_a_wait_that_was_asked_for_outlives_a_restart(tmp_path: Path) -> None:
    sent = Sent(LocalFolder(tmp_path))
    sent.hold(1_000_000)
    again = Sent(LocalFolder(tmp_path))
    assert again.hold_until == pytest.approx(sent.hold_until)


@given(contents=st.lists(st.sampled_from("abc"), max_size=8), data=st.data())
def test_ids_are_the_same_in_any_order(contents: list[str], data: st.DataObject) -> None:
    ids = identities(PLACE, 7, contents, ())
    shuffled = data.draw(st.permutations(contents))
    assert len(set(ids)) == len(ids)
    assert sorted(identities(PLACE, 7, shuffled, ())) == sorted(ids)
    assert not set(identities(PLACE, 8, contents, ())) & set(ids)


def test_of_equal_messages_those_that_were_sent_come_first() -> None:
    first, second = identities(PLACE, 0, ["a", "a"], ())
    assert identities(PLACE, 0, ["a"], {second}) == [second]  # the first one was given up meanwhile
    assert set(identities(PLACE, 0, ["a", "a"], {second})) == {first, second}
