"""`python -m bench.spark.program SYSTEM CORES`: one act a line in, one outcome a line out, both as JSON."""

import json
import sys
import traceback

from bench.spark.program.actions import Actions
from bench.spark.program.dialect import Dialect

OUTCOME = "outcome: "


def main() -> None:
    """Serve until standard input ends."""
    actions = Actions(_dialect(sys.argv[1]), int(sys.argv[2]))
    _say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _say(getattr(actions, order.pop("act"))(**order))
        except Exception:  # noqa: BLE001  the benchmark decides what a failed act means
            _say({"failure": traceback.format_exc()})


def _dialect(system: str) -> Dialect:
    if system == "connector":
        from bench.spark.program.connector import Connector

        return Connector()
    from bench.spark.program.headrace import Headrace

    return Headrace()


def _say(outcome: object) -> None:
    sys.stdout.write(f"{OUTCOME}{json.dumps(outcome)}\n")
    sys.stdout.flush()


main()
