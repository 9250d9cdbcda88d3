"""A new password: from a file, the environment or the terminal, never from an argument."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE: Final = "HEADRACE_NEW_PASSWORD"


def read_new_password(user: str, file: Path | None) -> str:
    """The password for a user; raises `Misuse` if there is none."""
    password = _read(user, file)
    if not password:
        raise Misuse(f"the password of {user} is empty.")
    return password


def _read(user: str, file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as fault:
            raise Misuse(f"the password file {file} cannot be read: {fault}") from fault
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    if not sys.stdin.isatty():
        raise Misuse(
            f"there is no password for {user}: name a file (--password-file FILE), set {VARIABLE}, or run "
            "the command in a terminal."
        )
    password = getpass.getpass(f"Password of {user}: ")
    if getpass.getpass("The same again: ") != password:
        raise Misuse("the two passwords differ: nothing was changed.")
    return password
