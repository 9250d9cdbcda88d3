"""Why a job failed, in one sentence: the root cause behind a query's exception, without the stack of the JVM.

Spark reports a failure as text: the cause wrapped in causes, a Python traceback in the middle, a query plan
at the end. What helps is the innermost Python error with the user's own file and line, or else the first line
of what Spark says.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.engine.callers import PLACE, is_own
from headrace.errors import HeadraceError, did_you_mean

TRACEBACK: Final = "Traceback (most recent call last):"
ENDS: Final = (
    "\n=== Streaming Query ===",
    "\nJVM stacktrace:",
    "\nDriver stacktrace:",
    "\n== DataFrame ==",
    "\n== SQL ",
)
"""Where the part that people read ends."""
WRAPPING: Final = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", re.DOTALL)
CONDITION: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]*\] ?")
SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}\b;?")
FRAME: Final = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
PYTHON_ERROR: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$", re.DOTALL)
CAUSED_BY: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
LOST_TASK: Final = re.compile(r"most recent failure: Lost task .*?\): (?:[\w.$]+: )?(.+)")
JAVA_CALL: Final = re.compile(r"^An error occurred while calling [\w.]+\.\n: (?:[\w.$]+: )?")
"""What Py4J puts in front of the error of Java."""
SPARKS: Final = ("pyspark.", "py4j.")
"""Whose errors repeat what Spark says in its own form."""
JAVA_CLASS: Final = re.compile(r"(?:class|interface) (?:\w+\.)*")
JAVA_ERROR: Final = "py4j.protocol.Py4JJavaError"
"""Its name tells nobody anything."""
PROGRAMMING: Final = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""Python's errors of code that is wrong, not of a network or a disk that is away."""
NO_METHOD: Final = re.compile(r"py4j\.Py4JException: (?:Method|Constructor) (?P<call>.+) does not exist")
"""What Py4J says when an argument has a type that no function of Spark's takes."""
REFUSALS: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
"""Spark's errors of a query that it does not run, whatever its input is."""
UNKNOWN_ARGUMENT: Final = re.compile(
    r"^(?P<function>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'$"
)
ADVICE: Final = {
    "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION": "Results of an aggregation without a window change with "
    "every row, so they cannot be appended. Write them into a view, into=app.view(…, key=…), or as changes, "
    'output_mode="update"; or aggregate by window, stream.window(tumbling("1 minute"), by=…).agg(…).',
    "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING": "Use .top(…) for the first rows of each window, or a "
    "window of event time.",
}
"""What to write instead, by the condition of Spark's error."""
SPARKS_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
CALLBACKS: Final = "py4j.clientserver"
CALLBACK_FAILED: Final = "There was an exception while executing the Python Proxy"
LONGEST: Final = 600


def is_spark_gone(error: BaseException) -> bool:
    """Whether the Java process of Spark has ended: all further calls to it would fail in the same way."""
    if type(error).__name__ == "Py4JNetworkError":
        return True
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, ConnectionError) else ()
    return any("py4j" in Path(frame.filename).parts for frame in frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What lay at the root of a failure."""

    kind: str
    """The qualified name of the Python error, or nothing where Spark itself complained."""
    message: str
    place: str = ""
    """The line of the user's own code that was running: "pipeline.py, line 12, in amount_of"."""

    @property
    def sentence(self) -> str:
        """The cause as one line for people."""
        is_ours = self.kind.startswith("headrace.") or not self.kind
        name = "" if is_ours else f"{self.kind.rpartition('.')[2]}: "
        place = f" ({self.place})" if self.place else ""
        return f"{name}{_one_line(self.message)}{place}"


def silence_spark() -> None:
    """Keep PySpark and Py4J from printing every error again, with its stack, on standard error."""
    for name in SPARKS_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger(CALLBACKS).addFilter(_is_not_of_a_batch)


def _is_not_of_a_batch(record: logging.LogRecord) -> bool:
    """Whether this is not the error of a micro-batch, with which its query ends: the job says why."""
    return not record.getMessage().startswith(CALLBACK_FAILED)


def explain(error: BaseException) -> str:
    """One sentence that says why."""
    return root_cause(error).sentence


def root_cause(error: BaseException) -> Cause:
    """The innermost cause that an exception of Spark's, or any other, tells of."""
    if isinstance(error, HeadraceError):
        return Cause(kind=_qualified(error), message=str(error), place=_place_in(error))
    text = WRAPPING.sub("", str(error))
    for end in ENDS:
        text = text.partition(end)[0]
    if TRACEBACK in text:
        return _python_cause(text)
    if (call := _missing_method(error)) is not None:
        message = f"Spark has no {call}: an argument has a type that this function does not take."
        return Cause(kind="", message=message, place=_place_in(error))
    if type(error).__module__.startswith(SPARKS):
        return Cause(kind="", message=_spark_message(text) + _advice(error), place=_place_in(error))
    message = str(error) + _suggestion(str(error))
    return Cause(kind=_qualified(error), message=message, place=_place_in(error))


def sentence_of(error: BaseException, *, otherwise: str) -> str:
    """Why, in one sentence, with the line of the user's code or, where none was running, `otherwise`."""
    cause = root_cause(error)
    return cause.sentence if cause.place else f"{cause.sentence} ({otherwise})"


def is_permanent(error: BaseException) -> bool:
    """Whether an error while a job is defined and started would come again each time.

    Errors of our own say that themselves. One with a traceback in its text comes from a process of Spark's,
    which may have died or may not have reached a broker.
    """
    is_refusal = type(error).__module__.startswith("pyspark.") and type(error).__name__ in REFUSALS
    is_mistake = isinstance(error, PROGRAMMING) or is_refusal or _missing_method(error) is not None
    return is_mistake and TRACEBACK not in str(error)


def _missing_method(error: BaseException) -> str | None:
    """The call that Spark has no method for, where an argument of a wrong type was passed on to it."""
    found = NO_METHOD.search(str(error)) if type(error).__name__ == "Py4JError" else None
    return None if found is None else JAVA_CLASS.sub("", found["call"])


def _advice(error: Any) -> str:
    advice = ADVICE.get(error.getCondition() or "") if hasattr(error, "getCondition") else None
    return "" if advice is None else f" {advice}"


def _suggestion(message: str) -> str:
    """The argument that was meant, where a function of Headrace's got one that it does not have."""
    match = UNKNOWN_ARGUMENT.match(message)
    function = None if match is None else _function(match["function"])
    if match is None or function is None:
        return ""
    return "." + did_you_mean(match["name"], inspect.signature(function).parameters)


def _function(name: str) -> Any:
    """The function of Headrace's that an error of Python's names: `App.stream`, `tumbling`."""
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("headrace.")]
    for module in modules:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if inspect.isfunction(found):
            return found
    return None


def _python_cause(text: str) -> Cause:
    """The last traceback in a text: later ones are nearer to the root."""
    lines = text.rpartition(TRACEBACK)[2].strip("\n").split("\n")
    frames = [frame for line in lines if (frame := FRAME.match(line))]
    said = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    match = PYTHON_ERROR.match(SQL_STATE.sub("", "\n".join(lines[said:])).strip())
    if match is None:
        return Cause(kind="", message=_spark_message(text.partition(TRACEBACK)[0]))
    kind, message, place = match["kind"], match["message"] or "", _own_place(frames)
    if kind.startswith(SPARKS):
        message = _spark_message(message)
    return Cause(kind="" if kind == JAVA_ERROR else kind, message=message, place=place)


def _own_place(frames: list[re.Match[str]]) -> str:
    own = [frame for frame in frames if is_own(frame["file"])]
    if not own:
        return ""
    return f"{Path(own[-1]['file']).name}, line {own[-1]['line']}, in {own[-1]['function']}"


def _place_in(error: BaseException) -> str:
    """The last line of the user's own code in the traceback of an exception that was raised here."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_own(code.co_filename):
            place = f"{Path(code.co_filename).name}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    # An error of the planner has the line that made the operator.
    return place or getattr(error, PLACE, "")


def _spark_message(text: str) -> str:
    """The first line of what Spark says, without its codes; the last cause where it only wraps others."""
    for nested in (LOST_TASK.search(text), *reversed(list(CAUSED_BY.finditer(text)))):
        if nested is not None:
            text = nested[1]
            break
    text = CONDITION.sub("", SQL_STATE.sub("", JAVA_CALL.sub("", text)).strip())
    return text.partition("\n")[0].strip() or "Spark gave no reason"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _qualified(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
