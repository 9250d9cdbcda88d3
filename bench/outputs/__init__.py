"""Throughput of sinks into tables and caches, compared with hand-written programs."""
