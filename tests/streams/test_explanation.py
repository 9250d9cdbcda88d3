"""Failures as Spark reports them, and the one sentence that comes of them."""

import pytest

from headrace.errors import HeadraceError
from headrace.streams.explanation import explain, root_cause

WRAPPED = "[STREAM_FAILED] Query [id = 8dd4bd11, runId = a9ad073e] terminated with exception: "
PLAN = "\n=== Streaming Query ===\nIdentifier: [id = 8dd4bd11]\nLogical Plan:\n~Project [x#1]\n"


class SparkError(Exception):
    """An exception that looks as if PySpark had raised it."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"


def failed(text: str) -> SparkError:
    return SparkError(WRAPPED + text + PLAN)


def test_an_error_in_a_function_of_the_user_is_told_with_file_and_line() -> None:
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the worker: Traceback (most recent call last):\n"
        '  File "/home/me/shop/pipeline.py", line 47, in per_piece\n'
        "    return amount // pieces\n"
        "           ~~~~~~~^^~~~~~~~\n"
        "ZeroDivisionError: integer division or modulo by zero\n"
        " SQLSTATE: 38000 SQLSTATE: XXKST"
    )
    expected = "ZeroDivisionError: integer division or modulo by zero (pipeline.py, line 47, in per_piece)"
    assert explain(failed(text)) == expected


def test_an_error_of_our_own_inside_a_batch_is_told_as_it_is() -> None:
    text = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function. Reason: "
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        '  File "/x/site-packages/py4j/clientserver.py", line 644, in _call_proxy\n'
        "    return_value = getattr(self.pool[obj_id], method)(*params)\n"
        "headrace.spark.transactional_sink.SinkFenced: the job 'revenue' is run by another driver now\n"
        " SQLSTATE: 39000 SQLSTATE: XXKST"
    )
    cause = root_cause(failed(text))
    assert cause.kind == "headrace.spark.transactional_sink.SinkFenced"
    assert cause.sentence == "the job 'revenue' is run by another driver now"


def test_a_python_process_of_spark_that_was_killed_is_told_in_sparks_words() -> None:
    text = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback (most recent call last):\n"
        '  File "/x/site-packages/headrace/spark/batch.py", line 3, in run\n    encoded.toArrow()\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o61.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 12.0 failed 1 "
        "times, most recent failure: Lost task 0.0 in stage 12.0 (TID 12) (host executor driver): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.apply(PythonRunner.scala:1)\n"
        "\nDriver stacktrace:\n\tat org.apache.spark.X.y(X.scala:1)"
    )
    assert explain(failed(text)) == "Python worker exited unexpectedly (crashed)"


def test_an_error_of_java_is_told_without_the_call_that_failed() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised\n"
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/py4j/protocol.py", line 327, in get_return_value\n'
        "    raise Py4JJavaError(\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o408.count.\n"
        ": java.net.SocketException: Connection reset\n"
        "\tat java.base/sun.nio.ch.SocketChannelImpl.read(SocketChannelImpl.java)\n"
    )
    assert explain(failed(text)) == "Connection reset"


def test_the_innermost_of_nested_tracebacks_counts() -> None:
    text = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback (most recent call last):\n"
        '  File "/x/site-packages/headrace/spark/batch.py", line 3, in run\n    encoded.toArrow()\n'
        "pyspark.errors.exceptions.captured.PythonException: \n"
        "  An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "/home/me/rules.py", line 5, in rate\n    return rates[name]\n'
        "KeyError: 'gold'\n"
        "\nJVM stacktrace:\norg.apache.spark.SparkException\n\tat org.apache.spark.X.y(X.scala:1)"
    )
    assert explain(failed(text)) == "KeyError: 'gold' (rules.py, line 5, in rate)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[USER_RAISED_EXCEPTION] hello there SQLSTATE: P0001 SQLSTATE: XXKST", "hello there"),
        (
            "[CAST_INVALID_INPUT] The value 'x0' cannot be cast. SQLSTATE: 22018\n== SQL (line 1) ==",
            "The value 'x0' cannot be cast.",
        ),
        (
            "Job aborted due to stage failure: Task 0 in stage 5.0 failed 4 times, most recent failure: "
            "Lost task 0.3 in stage 5.0 (TID 9) (10.0.0.1 executor 1): java.io.IOException: "
            "No space left on device\n\tat java.base/x\nDriver stacktrace:",
            "No space left on device",
        ),
        (
            "org.apache.spark.SparkException: wrapped\n\tat x\nCaused by: java.lang.Outer: outer\n\tat y\n"
            "Caused by: java.net.ConnectException: Connection refused\n\tat z",
            "Connection refused",
        ),
        ("", "Spark gave no reason"),
    ],
)
def test_what_spark_says_is_told_without_codes_and_stacks(text: str, expected: str) -> None:
    assert explain(failed(text)) == expected


def test_an_error_while_a_job_is_made_is_told_with_its_place() -> None:
    scope: dict[str, object] = {}
    exec(compile("def job():\n    return undefined\n", "/home/me/pipeline.py", "exec"), scope)
    with pytest.raises(NameError) as caught:
        scope["job"]()  # type: ignore[operator]
    assert explain(caught.value) == "NameError: name 'undefined' is not defined (pipeline.py, line 2, in job)"


def test_an_error_of_ours_is_one_line() -> None:
    assert explain(HeadraceError("what happened,\n  and what to do.")) == "what happened, and what to do."


def test_a_long_message_is_cut() -> None:
    assert len(explain(ValueError("x" * 5000))) < 700
