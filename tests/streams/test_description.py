"""Which changes of a job its checkpoint survives."""

import json
from dataclasses import replace

import pytest

from headrace.engine.description import (
    Description,
    IncompatibleChange,
    check_change,
    incompatibilities,
)
from headrace.spark.internals import SparkOperator

WINDOWED = SparkOperator(
    kind="aggregation",
    keys=("window struct<start:timestamp,end:timestamp>", "product string"),
    holds=("sum(amount) double",),
    details="60000000",
)
BEFORE = Description(
    generation=1,
    inputs=("orders", "payments"),
    output="revenue",
    mode="append",
    operators=(WINDOWED,),
    state={"window-1": "windows of 60 s"},
)


def test_a_description_comes_back_from_json() -> None:
    assert Description.from_json(json.loads(json.dumps(BEFORE.to_json()))) == BEFORE


@pytest.mark.parametrize(
    "after", [BEFORE, replace(BEFORE, output="elsewhere"), replace(BEFORE, schema="x int")]
)
def test_what_has_nothing_to_do_with_state_may_change(after: Description) -> None:
    assert incompatibilities(BEFORE, after) == []


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (replace(BEFORE, inputs=("payments", "orders")), "in the order payments, orders"),
        (replace(BEFORE, inputs=("orders",)), "now it reads orders"),
        (replace(BEFORE, operators=()), "kept state for aggregation, and now for nothing"),
        (replace(BEFORE, operators=(replace(WINDOWED, keys=("city string",)),)), "now they are city string"),
        (replace(BEFORE, operators=(replace(WINDOWED, holds=("avg(amount) double",)),)), "avg"),
        (replace(BEFORE, operators=(replace(WINDOWED, details="300000000"),)), "computed differently"),
        (replace(BEFORE, mode="update"), "mode was append and is now update"),
        (replace(BEFORE, state={}), "kept state for window-1 (windows of 60 s), and has no such operator"),
        (replace(BEFORE, state={"window-1": "windows of 90 s"}), "now it would be for windows of 90 s"),
        (replace(BEFORE, state={**BEFORE.state, "join-1": "pairs"}), "join-1 (pairs) is new"),
    ],
)
def test_a_change_of_state_is_refused_with_the_ways_out(after: Description, reason: str) -> None:
    with pytest.raises(IncompatibleChange) as caught:
        check_change("revenue", BEFORE, after)
    assert reason in str(caught.value)
    assert "headrace job reset revenue --to start" in str(caught.value)


def test_a_job_without_state_may_change_its_mode() -> None:
    before = replace(BEFORE, operators=())
    assert incompatibilities(before, replace(before, mode="update")) == []
