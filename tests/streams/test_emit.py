"""When the result of a window is given."""

import pytest

from headrace import App, hopping
from headrace.testing import run
from tests.streams.window_jobs import count_by, counted, inputs

pytestmark = pytest.mark.timeout(600)


def test_a_result_that_changes_is_given_again_and_replaces_the_one_before(app: App) -> None:
    job = count_by(app, hopping("6 minutes", every="3 minutes"), emit="on_window_update")
    rows = run(job, inputs([1, 2], [7, 4]))
    assert [row["events"] for row in rows if counted([row]).keys() == {(0, 6)}] == [2, 3]
    assert counted(rows) == {(-3, 3): 2, (0, 6): 3, (3, 9): 2, (6, 12): 1}
