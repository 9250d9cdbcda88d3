"""The first code of the Python processes that Spark's JVM starts: the folder of this file is on their path.

Spark closes the connection to a process that plans a read as soon as it has the result, and to one that reads
a stream when its query is stopped. A process that is still writing then prints the stack trace of a broken
pipe, which has no use for users and is suppressed here.

PySpark is loaded from where it is installed, with compiled files, and not from the zip file that Spark adds.
"""

import sys
import traceback
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any


def _unless_disconnected(show: Callable[..., None], error_of: Callable[..., Any]) -> Callable[..., None]:
    """The function `show`, without errors that only say that the other side closed the connection."""

    def shown(*arguments: Any, **named: Any) -> None:
        if not isinstance(error_of(*arguments), BrokenPipeError):
            show(*arguments, **named)

    return shown


def _leave_the_zip() -> None:
    """Load PySpark from where it is installed, compiled.

    Spark puts a zip of the same files first, and Python compiles each of them every time: 0.6 s per process.
    """
    packages = [Path(path, "pyspark") for path in sys.path]
    installed = [package.resolve() for package in packages if (package / "__init__.py").is_file()]
    sys.path[:] = [
        path for path in sys.path if not any(Path(path).resolve().is_relative_to(one) for one in installed)
    ]


def _run_the_one_behind() -> None:
    """Run the `sitecustomize` of the machine, which this one hides."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


traceback.print_exc = _unless_disconnected(traceback.print_exc, lambda *_: sys.exception())
sys.excepthook = _unless_disconnected(sys.excepthook, lambda _kind, error, _trace: error)
sys.unraisablehook = _unless_disconnected(sys.unraisablehook, lambda unraisable: unraisable.exc_value)
_leave_the_zip()
_run_the_one_behind()
