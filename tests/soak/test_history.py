"""The checker of histories finds each kind of anomaly, and none in a history that is in order."""

from tests.soak.history import (
    Assign,
    Commit,
    History,
    Log,
    Operation,
    Outcome,
    Poll,
    Send,
    find_anomalies,
    find_copy_anomalies,
    find_missing,
)


def sent(value: int, offset: int | None, outcome: Outcome = Outcome.COMMITTED) -> Send:
    return Send(producer="p", partition=0, value=value, outcome=outcome, offset=offset)


def polled(value: int, offset: int) -> Poll:
    return Poll(consumer="c", partition=0, offset=offset, value=value)


def assigned(committed: int = 0) -> Assign:
    return Assign(consumer="c", partition=0, committed=committed)


def kinds(log: Log, *operations: Operation) -> list[str]:
    return [anomaly.kind for anomaly in find_anomalies(History(list(operations)), log)]


def test_a_history_in_order_has_no_anomaly() -> None:
    operations = [
        sent(1, 0),
        sent(2, 1, Outcome.ABORTED),
        sent(3, None, Outcome.UNKNOWN),
        sent(4, 4),
        assigned(),
        polled(1, 0),
        Commit(partition=0, offset=1),
        assigned(committed=1),
        polled(3, 2),
        polled(4, 4),
    ]
    assert kinds([{0: 1, 2: 3, 4: 4}], *operations) == []


def test_an_acknowledged_value_that_is_not_in_the_log_is_a_lost_write() -> None:
    assert kinds([{0: 1}], sent(1, 0), sent(2, 1)) == ["lost write"]


def test_a_value_whose_fate_is_unknown_may_be_in_the_log_or_not() -> None:
    assert kinds([{0: 1}], sent(1, None, Outcome.UNKNOWN), sent(2, None, Outcome.UNKNOWN)) == []


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    assert kinds([{0: 1, 1: 1}], sent(1, 0)) == ["duplicate"]


def test_two_values_at_one_offset_are_inconsistent() -> None:
    found = kinds([{0: 2}], sent(1, 0, Outcome.UNKNOWN), sent(2, None))
    assert found == ["inconsistent offset"]


def test_a_poll_of_an_aborted_value_is_found() -> None:
    assert kinds([{}], sent(1, 0, Outcome.ABORTED), assigned(), polled(1, 0)) == ["aborted read"]


def test_a_value_that_was_never_sent_is_found() -> None:
    assert kinds([{0: 7}]) == ["unsent read"]


def test_a_poll_that_passes_over_a_record_is_found() -> None:
    log = {0: 1, 1: 2, 2: 3}
    assert kinds([log], sent(1, 0), sent(2, 1), sent(3, 2), polled(1, 0), polled(3, 2)) == ["skipped poll"]


def test_a_poll_that_goes_back_is_found() -> None:
    log = {0: 1, 1: 2}
    assert kinds([log], sent(1, 0), sent(2, 1), polled(2, 1), polled(1, 0)) == ["non-monotonic poll"]


def test_a_new_assignment_may_go_back() -> None:
    log = {0: 1, 1: 2}
    assert kinds([log], sent(1, 0), sent(2, 1), polled(2, 1), assigned(), polled(1, 0)) == []


def test_a_member_that_starts_in_front_of_the_committed_offset_shows_a_lost_commit() -> None:
    log = {0: 1, 1: 2}
    assert kinds([log], sent(1, 0), sent(2, 1), assigned(committed=1), polled(1, 0)) == ["lost commit"]


def test_acknowledged_sends_of_one_producer_in_another_order_are_found() -> None:
    assert kinds([{0: 2, 1: 1}], sent(1, 1), sent(2, 0)) == ["reordered send"]


def test_values_that_reached_nobody_are_missing() -> None:
    history = History([sent(1, 0), sent(2, 1), sent(3, None, Outcome.UNKNOWN)])
    assert find_missing(history, received=[1, 1]) == [2]


def test_an_exactly_once_copy_has_each_value_once() -> None:
    log: Log = [{0: 1, 1: 2}, {0: 3}]
    assert find_copy_anomalies(log, [3, 2, 1]) == {}
    assert find_copy_anomalies(log, [3, 3, 1, 9]) == {2: 0, 3: 2, 9: 1}
