"""The state of a job that has run: in its reports, as a DataFrame, and refused if it is outdated."""

import pytest
from pyspark.sql import SparkSession

from headrace import Misuse, read_state
from tests.streams.test_changed_jobs import click, deduplicating, refusal
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)


def test_state_is_reported_and_can_be_read(workshop: Workshop, spark: SparkSession) -> None:
    workshop.write("clicks", *(click(number, 1) for number in range(9)))
    assert workshop.run_once(deduplicating()) == 0
    (report,) = workshop.recorder.reports
    assert report.state_rows == 9
    assert (report.state_bytes or 0) > 0 < (report.state_ms or 0)
    rows = read_state(spark, "once", state=workshop.state)
    assert sorted(row["id"] for row in rows.collect()) == list(range(9))
    (row,) = read_state(spark, "shop.once", key={"id": 4}, state=workshop.state).collect()
    assert (row["id"], row["state_due"]) == (4, None)
    with pytest.raises(Misuse, match="no operator 'window-3'"):
        read_state(spark, "once", "window-3", state=workshop.state)


def test_state_of_an_earlier_version_is_refused_with_the_way_forward(workshop: Workshop) -> None:
    workshop.write("clicks", click(1, 1))
    assert workshop.run_once(deduplicating()) == 0
    (operator,) = workshop.state.rglob("operator.json")
    operator.rename(operator.with_name("stage.json"))
    said = refusal(workshop, deduplicating())
    assert "was written by an earlier version of Headrace" in said
    assert "headrace job reset" in said
