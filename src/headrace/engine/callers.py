"""Where the user's own code calls Headrace: the file and line that error messages name."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

LIBRARIES: Final = (
    sysconfig.get_paths()["stdlib"],
    "site-packages",
    "dist-packages",
    "<frozen ",
    "<string>",  # what dataclasses generate
    f"{Path(__file__).parents[1]}{os.sep}",
)
"""Parts of the paths of code that is not the user's."""
PLACE: Final = "headrace_place"
"""The attribute of an exception that names the line of the user's code, where its traceback does not."""


def is_own(file: str) -> bool:
    """Whether a file is the user's own, not one of a library or of Headrace."""
    return not any(part in file for part in LIBRARIES)


def place_of_caller() -> str:
    """The innermost line of the user's own code that runs now: "pipeline.py, line 12"; "" for none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def folder_of_caller() -> Path:
    """The folder of the file that called the caller of this; the current one where it is no file."""
    file = Path(sys._getframe(2).f_code.co_filename)
    return file.absolute().parent if file.is_file() else Path.cwd()
