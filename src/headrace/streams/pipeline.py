"""The user's file: imported, and the application in it found."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, Misuse
from headrace.streams.app import App
from headrace.streams.explanation import explain

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def load_app(path: Path) -> App:
    """The application that the file defines."""
    apps = {id(value): value for value in vars(load_module(path)).values() if isinstance(value, App)}
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise Misuse(f'{path} defines no application: it needs a line such as app = App("shop").')
    names = ", ".join(sorted(app.name for app in apps.values()))
    raise Misuse(f"{path} defines several applications ({names}): put each into a file of its own.")


def load_module(path: Path) -> ModuleType:
    """The file as a module; what stands in the way is explained with its line.

    Modules beside the file can be imported by it, here and in Spark's Python processes on this machine. Its
    own functions travel to them by value, because they could not import it by its name.
    """
    if not path.is_file():
        raise Misuse(f"{path} is not there: name the Python file that defines the application.")
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    module = _executed(path, f"pipeline_{path.stem}")
    _pickle_by_value(module)
    return module


def _executed(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} is not a Python file: its name has to end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Misuse as error:
        raise Misuse(explain(error)) from error
    except HeadraceError:
        raise
    except Exception as error:
        raise Misuse(f"{path} cannot be run: {explain(error)}") from error
    return module


def _pickle_by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # PySpark left it untyped
