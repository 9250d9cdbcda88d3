"""Sessions: events of a key that follow each other."""

import pytest

from headrace import App, session
from headrace.testing import run
from tests.streams.window_jobs import FAR, at_minute, count_by, counted, inputs, missed, results
from tests.streams.window_reference import run_reference

pytestmark = pytest.mark.timeout(600)


def test_session_with_gap_5_of_events_at_1_3_10_12(app: App) -> None:
    rows = run(count_by(app, session("5 minutes")), inputs([1, 3, 10, 12, FAR]))
    assert counted(rows) == {(1, 8): 2, (10, 17): 2}


def test_sessions_grow_together_over_batches_and_keys_have_their_own(app: App) -> None:
    window = session("5 minutes")
    parts = [
        [at_minute(10, "a", 1), at_minute(20, "a", 2), at_minute(16, "b", 4)],
        # Joins what the first part had apart; b's begins exactly when the one before ends.
        [at_minute(15, "a", 8), at_minute(21, "b", 16), at_minute(21, "b", 32)],
        [at_minute(26.1, "b", 64), at_minute(FAR, "c", 128)],
    ]
    job = count_by(app, window, late="counts.late")
    rows = run(job, inputs(*parts))
    expected = run_reference(window, parts, 0)
    assert results(rows) == sorted(expected.results, key=repr)
    assert missed(rows.late) == sorted(expected.late, key=repr)


def test_a_late_event_is_judged_by_the_session_that_it_would_be_alone(app: App) -> None:
    window = session("5 minutes")
    # At 20 the watermark is 20: what began at 15 is over, and what began at 15.1 is not.
    parts = [[at_minute(20)], [at_minute(15), at_minute(15.1)], [at_minute(FAR)]]
    rows = run(count_by(app, window, late="counts.late"), inputs(*parts))
    assert counted(rows) == {(15.1, 25): 2}
    assert missed(rows.late) == [((at_minute(15).at_ms, at_minute(20).at_ms), at_minute(15))]
