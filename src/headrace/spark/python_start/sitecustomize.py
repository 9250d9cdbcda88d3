"""What the Python processes of Spark's JVM run first, before Spark's own code: it stands on their path.

Spark hangs up on a process that plans a read as soon as it has the answer, and on one that follows a stream
when its query is stopped. A process that was about to say something then prints the whole trace of a broken
pipe, which says nothing to anybody, so it is left out.

Spark's own code is loaded from where it is compiled already, and not from the zip that Spark would have.
"""

import sys
import traceback
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any


def _unless_hung_up(show: Callable[..., None], error_of: Callable[..., Any]) -> Callable[..., None]:
    """The function `show`, but for errors that only say that the other side has hung up."""

    def shown(*arguments: Any, **named: Any) -> None:
        if not isinstance(error_of(*arguments), BrokenPipeError):
            show(*arguments, **named)

    return shown


def _leave_the_zip() -> None:
    """Load PySpark from where it is installed, compiled.

    Spark puts a zip of the same files first, of which Python compiles each anew: 0.6 s in every process.
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


traceback.print_exc = _unless_hung_up(traceback.print_exc, lambda *_: sys.exception())
sys.excepthook = _unless_hung_up(sys.excepthook, lambda _kind, error, _trace: error)
sys.unraisablehook = _unless_hung_up(sys.unraisablehook, lambda unraisable: unraisable.exc_value)
_leave_the_zip()
_run_the_one_behind()
