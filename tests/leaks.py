"""The search for a secret where none may be: in files, and in the command lines of processes."""

import base64
import threading
from pathlib import Path
from typing import Self


def forms(secret: str) -> list[bytes]:
    """The secret as it could appear: as it is, in UTF-16, and anywhere in a text in base64."""
    plain = secret.encode()
    encoded = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + plain)
        encoded.append(text[-(-before * 8 // 6) : (before + len(plain)) * 8 // 6])
    return [plain, secret.encode("utf-16-le"), *encoded]


def is_in(content: bytes, secret: str) -> bool:
    """Whether the content has the secret in any form."""
    return any(form in content for form in forms(secret))


def files_with(folder: Path, secret: str) -> list[Path]:
    """The files of a folder that have the secret."""
    return [file for file in folder.rglob("*") if file.is_file() and is_in(file.read_bytes(), secret)]


class CommandLines(threading.Thread):
    """Collects the command lines of all processes of this machine while the block lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(process.read_bytes())
                except OSError:
                    continue  # it has ended

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
