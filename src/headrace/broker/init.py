"""The command `headrace broker init`: create the first user of a broker that does not run.

The user is a super user, who creates all others with `headrace user create`. Run again, it sets a new
password: who can write the data folder can always get in.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.config import BrokerConfig
from headrace.broker.security.scram import ScramCredential
from headrace.broker.security.store import MAX_USER_BYTES
from headrace.errors import HeadraceError, Misuse
from headrace.password import VARIABLE, read_new_password
from headrace.protocol.scram import ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace broker init",
        description="Create a super user in the data folder of a stopped broker, or set its password.",
        epilog="example: headrace broker init --data ./data --user admin",
    )
    parser.add_argument(
        "--data", default="data", type=Path, metavar="DIR", help="the data folder (default: data)"
    )
    parser.add_argument("--user", required=True, metavar="NAME", help="name of the user")
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"file with the password (default: {VARIABLE}, or the terminal)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Create the user. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if not 0 < len(options.user.encode()) <= MAX_USER_BYTES:
            raise Misuse(f"a user has a name of up to {MAX_USER_BYTES} bytes")
        password = read_new_password(options.user, options.password_file)
        asyncio.run(_create(options.data, options.user, password))
    except (HeadraceError, OSError) as fault:
        sys.stderr.write(f"headrace broker init: {fault}\n")
        return 1
    sys.stdout.write(f"created super user {options.user} in {options.data}\n")
    return 0


async def _create(data: Path, user: str, password: str) -> None:
    from headrace.broker.broker import Broker

    # A broker without listeners: it recovers the folder if the last one crashed, as every start does.
    broker = Broker(BrokerConfig(data=data), asyncio.get_running_loop())
    store = broker.security.store
    store.alter_credentials(
        {
            (user, mechanism): ScramCredential.from_password(mechanism, password)
            for mechanism in ScramMechanism
        }
    )
    store.add_super_users([f"User:{user}"])
    await broker.stop()
