"""The clients of the systems, each a program of its own: `python -m bench.queue.clients NAME JOB`."""
