"""Readings of a run together with those of earlier runs."""

from bench.readings import Readings


def reading(readings, cell, value):
    readings.add(measure="m", cell=cell, unit="rows/s", system="s", value=value)


def test_what_was_not_measured_again_stays():
    before, after = Readings(), Readings()
    for cell in ("a", "b"):
        reading(before, cell, 1.0)
    reading(after, "b", 2.0)
    reading(after, "c", 3.0)
    both = after.with_others(before.as_json())
    found = {cell: both.find("m", cell, "rows/s", "s").values for cell in ("a", "b", "c")}
    assert found == {"a": (1.0,), "b": (2.0,), "c": (3.0,)}
