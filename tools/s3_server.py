"""A server with S3's protocol, moto, from an environment of its own: `make tools/s3/.venv/.ready`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = Path(__file__).parent / "s3" / ".venv" / "bin" / "moto_server"
BUCKET = "headrace"


class S3Server:
    """A server on a free port, with one empty bucket, until the block ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""
        self.url = f"s3://{BUCKET}/archive"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which a program finds the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [PROGRAM, "--port", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"Running on (http://\S+)", line):
                self.endpoint = found[1]
                break
        # Nobody reads its log: a full pipe would stop it.
        self._log = subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)
        with urlopen(Request(f"{self.endpoint}/{BUCKET}", method="PUT")):  # noqa: S310  our own server
            return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.kill()
        self._process.wait()
        self._log.wait()
        self._process.stderr.close()
