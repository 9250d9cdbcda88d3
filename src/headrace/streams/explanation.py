"""Why a job failed, in one sentence: the root cause behind a query's exception, without the stack of the JVM.

Spark reports a failure as text: the cause wrapped in causes, a Python traceback in the middle, a query plan
at the end. What helps is the innermost Python error with the user's own file and line, or else the first line
of what Spark says.
"""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError

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
SPARKS: Final = ("pyspark.", "py4j.")
"""Whose errors repeat what Spark says in its own form."""
JAVA_ERROR: Final = "py4j.protocol.Py4JJavaError"
"""Its name tells nobody anything."""
LIBRARIES: Final = (
    sysconfig.get_paths()["stdlib"],
    "site-packages",
    "dist-packages",
    str(Path(__file__).parents[1]),
)
LONGEST: Final = 600


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


def explain(error: BaseException) -> str:
    """One sentence that says why."""
    return root_cause(error).sentence


def root_cause(error: BaseException) -> Cause:
    """The innermost cause that an exception of Spark's, or any other, tells of."""
    if isinstance(error, HeadraceError):
        return Cause(kind=_qualified(error), message=str(error))
    text = WRAPPING.sub("", str(error))
    for end in ENDS:
        text = text.partition(end)[0]
    if TRACEBACK in text:
        return _python_cause(text)
    if type(error).__module__.startswith(SPARKS):
        return Cause(kind="", message=_spark_message(text), place=_place_in(error))
    return Cause(kind=_qualified(error), message=str(error), place=_place_in(error))


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
    own = [frame for frame in frames if not any(part in frame["file"] for part in LIBRARIES)]
    if not own:
        return ""
    return f"{Path(own[-1]['file']).name}, line {own[-1]['line']}, in {own[-1]['function']}"


def _place_in(error: BaseException) -> str:
    """The last line of the user's own code in the traceback of an exception that was raised here."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not any(part in code.co_filename for part in LIBRARIES):
            place = f"{Path(code.co_filename).name}, line {trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return place


def _spark_message(text: str) -> str:
    """The first line of what Spark says, without its codes; the last cause where it only wraps others."""
    for nested in (LOST_TASK.search(text), *reversed(list(CAUSED_BY.finditer(text)))):
        if nested is not None:
            text = nested[1]
            break
    text = CONDITION.sub("", SQL_STATE.sub("", text).strip())
    return text.partition("\n")[0].strip() or "Spark gave no reason"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _qualified(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
