"""The clients of the systems, each a separate program: `python -m bench.queue.clients NAME JOB`."""
