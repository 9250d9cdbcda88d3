"""The user's file as the command line needs it: the class of aggregates in it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, Misuse
from headrace.events.aggregate import Aggregate, AggregateForm, aggregate_form

if TYPE_CHECKING:
    from pathlib import Path


def load_aggregate(path: Path, name: str) -> AggregateForm:
    """The class of aggregates of that name, from a Python file; modules beside it can be imported by it."""
    spec = importlib.util.spec_from_file_location(f"events_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Misuse(f"{path} is no Python file that is there: name the one that defines {name}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        raise Misuse(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    kind = vars(module).get(name)
    if not (isinstance(kind, type) and issubclass(kind, Aggregate)):
        raise Misuse(f"{path} defines no aggregate {name}.")
    return aggregate_form(kind)
