"""The order in which jobs that feed each other are run."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.runner import stages

TOPICS = st.sampled_from(["t0", "t1", "t2", "t3", "t4", "t5"])


def test_jobs_without_ties_run_together() -> None:
    assert stages({"a": ("x",), "b": ("y",)}, {"a": ["p"], "b": ["q"]}) == [["a", "b"]]


def test_a_circle_runs_last_and_together() -> None:
    inputs = {"a": ("orders",), "b": ("c_out", "a_out"), "c": ("b_out",)}
    assert stages(inputs, {"a": ["a_out"], "b": ["b_out"], "c": ["c_out"]}) == [["a"], ["b", "c"]]


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.lists(TOPICS, max_size=3), TOPICS)))
def test_every_job_runs_once_and_after_those_that_feed_it(jobs: dict[str, tuple[list[str], str]]) -> None:
    inputs = {job: tuple(topics) for job, (topics, _) in jobs.items()}
    outputs = {job: [topic] for job, (_, topic) in jobs.items()}
    result = stages(inputs, outputs)
    assert sorted(job for stage in result for job in stage) == sorted(jobs)
    for position, stage in enumerate(result[:-1]):
        later = {topic for after in result[position:] for job in after for topic in outputs[job]}
        assert all(later.isdisjoint(inputs[job]) for job in stage)
