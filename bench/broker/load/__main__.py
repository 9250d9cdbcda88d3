"""Runs one job in its own process: `python -m bench.broker.load CLIENT JOB` prints the outcome as JSON."""

import gc
import sys
from importlib import import_module
from typing import cast

from bench.broker.load.job import Client, Job

MODULES = {
    "librdkafka": "bench.broker.load.librdkafka",
    "wire": "bench.broker.load.wire",
    "updates": "bench.broker.load.updates",
    "nats": "bench.broker.load.nats_client",
    "redis": "bench.broker.load.redis_client",
}


def main() -> None:
    """Run the job on the command line."""
    client = cast("Client", import_module(MODULES[sys.argv[1]]))
    job = Job.from_json(sys.argv[2])
    # The clients create no reference cycles; garbage collection would add to the latency of the broker.
    gc.disable()
    outcome = getattr(client, job.act)(job)
    print(outcome.to_json())


if __name__ == "__main__":
    main()
