"""The small parts of share groups: runs of numbers, rows of keys, wishes, names, records, sessions."""

from __future__ import annotations

import doctest
import importlib
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.broker.shares.dead_letters import dead_letter_topic
from headrace.broker.shares.key_order import KeyOrder
from headrace.broker.shares.ranges import Ranges
from headrace.broker.shares.records import (
    CHUNK,
    START,
    ShareKey,
    read_key,
    read_runs,
    read_start,
    write_chunk_key,
    write_runs,
    write_start,
    write_start_key,
)
from headrace.broker.shares.sessions import MAX_EPOCH, ShareSession, ShareSessions
from headrace.broker.shares.states import Reason, Run, StoredState
from headrace.broker.shares.wishes import read_wish
from headrace.broker.topics import check_name
from headrace.protocol.records import Record

SHARE = ShareKey("mailer", UUID(int=7), 3)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))), st.integers(0, 70))
def test_runs_hold_what_was_put_in(pairs: list[tuple[int, int]], number: int) -> None:
    runs, numbers = Ranges(), set[int]()
    for first, length in pairs:
        runs.add(first, first + length)
        numbers |= set(range(first, first + length + 1))
    assert {n for n in range(80) if n in runs} == numbers
    assert runs.total() == len(numbers)
    found = [n for first, last in runs.between(number, number + 9) for n in range(first, last + 1)]
    assert found == sorted(n for n in numbers if number <= n <= number + 9)
    expected = next(n for n in range(number, 90) if n not in numbers)
    assert runs.after(number) == expected
    if len(runs) > 1:
        assert all(last + 1 < first for (_, last), (first, _) in zip(runs, list(runs)[1:], strict=False))
    assert runs.take_from(number) == expected
    assert {n for n in range(80) if n in runs} == {n for n in numbers if n > expected}


def test_the_first_of_a_row_lets_the_next_one_go() -> None:
    rows = KeyOrder()
    assert [rows.join(offset, b"k") for offset in (1, 2, 3)] == [True, False, False]
    assert rows.waiting == 2
    assert rows.leave(2) is None
    assert rows.leave(1) == 3
    assert rows.leave(3) is None
    assert rows.join(9, b"k")


def test_headers_say_when_and_for_whom() -> None:
    headers = (
        (("headrace-delay-ms", b"500"),),
        (("headrace-deliver-at", b"oops"),),
        (("headrace-group", b"x"),),
    )
    wishes = [read_wish(Record(7, 1000, b"k", b"v", each), "mailer") for each in headers]
    assert [(wish.due_ms, wish.is_ours) for wish in wishes] == [(1500, True), (0, True), (0, False)]


@given(st.text(min_size=1, max_size=300), st.from_regex(r"[a-zA-Z0-9._-]{3,200}", fullmatch=True))
def test_every_queue_has_a_topic_for_its_dead_letters(group: str, topic: str) -> None:
    check_name(dead_letter_topic(topic, group))


def test_groups_whose_names_no_topic_can_have_are_kept_apart() -> None:
    assert dead_letter_topic("orders", "a b") != dead_letter_topic("orders", "a/b")
    module = importlib.import_module("headrace.broker.shares.dead_letters")
    assert doctest.testmod(module).failed == 0


def test_records_are_read_as_they_were_written() -> None:
    runs = [Run(3, 9, StoredState.DONE), Run(10, 10, StoredState.ARCHIVING, 5, Reason.LIMIT, 77)]
    assert read_runs(write_runs(runs)) == runs
    assert read_start(write_start(2**40)) == 2**40
    key = read_key(write_chunk_key(SHARE, 12))
    assert (key.kind, key.share, key.chunk) == (CHUNK, SHARE, 12)
    assert read_key(write_start_key(SHARE))[:3] == (START, "mailer", SHARE)


def test_sessions_count_and_belong_to_a_connection() -> None:
    sessions = ShareSessions(limit=1)
    session = sessions.open(("g", "m"), [], "peer")
    assert isinstance(session, ShareSession)
    assert sessions.open(("g", "n"), [], "peer") is ErrorCode.share_session_limit_reached
    assert sessions.go_on(("g", "m"), 1, "peer") is session
    assert sessions.go_on(("g", "m"), 1, "peer") is ErrorCode.invalid_share_session_epoch
    assert sessions.go_on(("g", "m"), 2, "other") is ErrorCode.share_session_not_found
    session.epoch = MAX_EPOCH
    assert sessions.go_on(("g", "m"), MAX_EPOCH, "peer") is session
    assert sessions.go_on(("g", "m"), 1, "peer") is session
    assert sessions.of_peer("peer") == (("g", "m"),)
    sessions.close(("g", "m"))
    assert sessions.of_peer("peer") == ()
    assert sessions.go_on(("g", "m"), 2, "peer") is ErrorCode.share_session_not_found
