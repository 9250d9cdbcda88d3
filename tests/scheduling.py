"""Which of the two workers runs a test: those that use the one Spark session stay together.

A session takes half a minute to start and to warm up. The controller knows tests only by their names, so it
is told here where they are.
"""

from xdist.scheduler import LoadScopeScheduling

SPARK = (
    "tests/capture/test_tables.py",
    "tests/cli/test_query.py",
    "tests/cluster/test_peer.py",
    "tests/columns/test_documents.py",
    "tests/columns/values/test_json_agrees.py",
    "tests/events/test_frames.py",
    "tests/spark/",
    "tests/streams/",
    "tests/testing/test_jobs.py",
)
EXAMPLES_OF_JOBS = "tests/docs/test_documentation.py::test_an_example_of_a_job_runs"
OF_THEIR_OWN = ("tests/spark/test_crash_matrix.py", "tests/spark/test_java.py")
"""They start Spark in processes of their own."""
LONG = (
    *OF_THEIR_OWN,
    "tests/cli/test_run.py",
    "tests/docs/test_documentation.py::test_the_commands_of_a_page_print_what_it_shows",
)
"""What one worker does alone while the other one has nothing left must be short, so these come early."""


class SparkTogether(LoadScopeScheduling):
    """Hands out tests one by one, but for those of Spark, which one worker gets as a whole, and first.

    The other worker begins with the longest of the others. (What is one scope is handed out as a whole, and
    the scopes with the most tests first.)
    """

    def _split_scope(self, nodeid: str) -> str:
        if uses_spark(nodeid):
            return "spark"
        return "long" if nodeid.startswith(LONG) else nodeid


def uses_spark(nodeid: str) -> bool:
    """Whether a test uses the session that all share."""
    return nodeid.startswith((*SPARK, EXAMPLES_OF_JOBS)) and not nodeid.startswith(OF_THEIR_OWN)
