"""Runs one load with one client, and prints its outcome."""

import importlib
import sys

from bench.queue.job import Job

MODULES = {
    "librdkafka": "share_consumer",
    "headrace": "own",
    "nats": "nats_worker",
    "rabbitmq": "pika_worker",
}


def main(name: str, text: str) -> None:
    """Run the job with the client of that name."""
    module = importlib.import_module(f"bench.queue.clients.{MODULES[name]}")
    print(module.run(Job.from_json(text)).to_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
