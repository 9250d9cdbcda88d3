"""Hopping windows: they overlap, or leave gaps."""

import pytest

from headrace import App, hopping, sliding
from headrace.testing import run
from tests.streams.window_jobs import FAR, count_by, counted, inputs

pytestmark = pytest.mark.timeout(600)


def test_hopping_6_every_10_leaves_gaps_and_an_event_at_7_is_in_none(app: App) -> None:
    """The last of them closes at its own end, though the next one begins later."""
    job = count_by(app, hopping("6 minutes", every="10 minutes"))
    rows = run(job, inputs([0, 5, 6, 7, 10, 15.99, 20, 21, 22, 26]))
    assert counted(rows) == {(0, 6): 2, (10, 16): 2, (20, 26): 3}


def test_hopping_or_sliding_6_every_2_has_an_event_at_5_in_three_windows(app: App) -> None:
    assert sliding("6 minutes", every="2 minutes") == hopping("6 minutes", every="2 minutes")
    rows = run(count_by(app, sliding("6 minutes", every="2 minutes")), inputs([5, FAR]))
    assert counted(rows) == {(0, 6): 1, (2, 8): 1, (4, 10): 1}
