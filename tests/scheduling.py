"""Which worker runs which test.

Most tests wait for clients and brokers, so there are more workers than cores. Tests that use the Spark
session take processor time, and a session takes half a minute to start and to warm up: two workers have one,
and run these tests file by file before any others. The other workers run the tests that use no session, the
longest first, so that no worker is still busy with one of them when all others have finished. They have a
lower priority: the processor time that they would take from a session makes the whole suite longer.

The controller knows tests only by their names, so this module says where the tests that use the session are.
"""

import os
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SESSIONS: Final = 2
LOWER_PRIORITY: Final = 5
"""How much nicer a worker without a session is."""
SPARK: Final = (
    "tests/backup/test_jobs.py",
    "tests/capture/test_tables.py",
    "tests/capture/test_whole_transactions.py::test_a_total_over_captured_tables_never_changes",
    "tests/cli/test_query.py",
    "tests/cluster/test_peer.py",
    "tests/columns/test_documents.py",
    "tests/columns/values/test_json_agrees.py",
    "tests/demo/test_observability.py",
    "tests/docs/test_documentation.py::test_an_example_of_a_job_runs",
    "tests/docs/test_documentation.py::test_the_commands_of_a_page_that_run_jobs",
    "tests/events/test_dataframes.py",
    "tests/spark/",
    "tests/engine/",
    "tests/streams/",
    "tests/testing/test_jobs.py",
)
LONG_WITH_SESSION: Final = (
    "tests/streams/test_failed_rows.py",
    "tests/streams/test_time.py",
    "tests/streams/test_unusable_rows.py",
    "tests/streams/test_stream_join.py",
)
"""Files that take long, with the session: the longest come first."""
LONG: Final = (
    "tests/spark/test_crash_matrix.py",
    "tests/docs/test_documentation.py::test_the_commands_of_a_page_print_what_it_shows",
    "tests/broker/test_pauses.py",
    "tests/cli/test_project.py",
    "tests/capture/test_debezium.py",
    "tests/spark/test_java.py",
    "tests/broker/test_durability.py",
    "tests/sinks/test_search.py",
    "tests/behavior/test_groups.py",
    "tests/columns/test_fuzzing.py",
    "tests/columns/test_encoding.py",
    "tests/demo/test_demo.py",
)
"""Tests that take long, without the session: the longest come first."""
BY_FILE: Final = (
    "tests/broker/test_hostile_bytes.py",
    "tests/broker/shares/test_hostile_batches.py",
    "tests/broker/test_lying_batches.py",
    "tests/broker/test_pauses.py",
    "tests/broker/transactions/test_crashes.py",
    "tests/capture/test_debezium.py",
    "tests/capture/test_random_changes.py",
    "tests/cli/test_capture.py",
    "tests/events/",
    "tests/feeds/",
    "tests/sinks/test_redis.py",
    "tests/storage/test_kafka_tools.py",
    "tests/typing/",
)
"""Files whose tests share a server or data, so that one worker runs them all."""


class SparkTogether(LoadScopeScheduling):
    """Hands out tests that share a session or a server by the file, and all others one by one."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._is_sorted = False

    def _split_scope(self, nodeid: str) -> str:
        is_shared = uses_session(nodeid) or nodeid.startswith(BY_FILE)
        return nodeid.partition("::")[0] if is_shared else nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._is_sorted:
            self._is_sorted = True
            for scope in sorted(self.workqueue, key=_rank):
                self.workqueue.move_to_end(scope)
        scope = self._next_scope(node)
        if scope is None:
            node.shutdown()  # it runs what it has, and ends
        else:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _next_scope(self, node: WorkerController) -> str | None:
        """The first scope; without a session, the first that needs none."""
        may_use_session = self._has_session(node) or sum(map(self._has_session, self.nodes)) < SESSIONS
        scopes = (scope for scope in self.workqueue if may_use_session or not uses_session(scope))
        return next(scopes, None)

    def _has_session(self, node: WorkerController) -> bool:
        return any(uses_session(scope) for scope in self.assigned_work[node])


def uses_session(nodeid: str) -> bool:
    """Whether a test, or a file of tests, uses the Spark session of its worker."""
    return nodeid.startswith(SPARK) and not nodeid.startswith(LONG)


def needs_lower_priority(nodeid: str) -> bool:
    """Whether this process runs a test without a session, and still has its normal priority."""
    return not uses_session(nodeid) and os.getpriority(os.PRIO_PROCESS, 0) < LOWER_PRIORITY


def _rank(scope: str) -> tuple[bool, int]:
    """Files of the session come first, then the rest; among each, what takes long, the longest first."""
    has_session = uses_session(scope)
    long = LONG_WITH_SESSION if has_session else LONG
    return not has_session, next((i for i, prefix in enumerate(long) if scope.startswith(prefix)), len(long))
