"""Which of the two workers runs a test: those that use a Spark session stay together.

A session takes half a minute to start and to warm up, so each worker has at most one: that of the source and
the sinks, which the tests in tests/spark share, and that of all others. The controller knows tests only by
their names, so it is told here where they are.
"""

from xdist.scheduler import LoadScopeScheduling

SPARK = (
    "tests/capture/test_tables.py",
    "tests/cli/test_query.py",
    "tests/cluster/test_peer.py",
    "tests/columns/test_documents.py",
    "tests/columns/values/test_json_agrees.py",
    "tests/events/test_frames.py",
    "tests/streams/",
    "tests/testing/test_jobs.py",
)
SOURCE = "tests/spark/"
EXAMPLES_OF_JOBS = "tests/docs/test_documentation.py::test_an_example_of_a_job_runs"
LONG = (
    "tests/capture/test_debezium.py",
    "tests/spark/test_crash_matrix.py",
    "tests/spark/test_java.py",
    "tests/cli/test_run.py",
    "tests/docs/test_documentation.py::test_the_commands_of_a_page_print_what_it_shows",
)
"""They start Spark, or Debezium, in processes of their own. What one worker does alone while the other has
nothing left must be short, so these come early."""


class SparkTogether(LoadScopeScheduling):
    """Hands out tests one by one, but for those of a session, which a worker gets as a whole, and first.

    The others begin with the longest. (What is one scope is handed out as a whole, and the scopes with the
    most tests first.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return session_of(nodeid) or ("long" if nodeid.startswith(LONG) else nodeid)


def session_of(nodeid: str) -> str | None:
    """Which of the two sessions a test uses; None where it uses neither."""
    if nodeid.startswith(LONG):
        return None
    if nodeid.startswith((*SPARK, EXAMPLES_OF_JOBS)):
        return "jobs"
    return "source" if nodeid.startswith(SOURCE) else None
