"""What the Python processes of Spark's JVM run first, before Spark's own code: it stands on their path.

Spark hangs up on a process that plans a read as soon as it has the answer. A process that was about to say
goodbye then prints the whole trace of a broken pipe, which says nothing to anybody, so it is left out.
"""

import sys
import traceback
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

_print_exc = traceback.print_exc


def _print_unless_hung_up(*arguments: Any, **named: Any) -> None:
    if not isinstance(sys.exception(), BrokenPipeError):
        _print_exc(*arguments, **named)


def _run_the_one_behind() -> None:
    """Run the `sitecustomize` of the machine, which this one hides."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


traceback.print_exc = _print_unless_hung_up
_run_the_one_behind()
