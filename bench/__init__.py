"""Benchmarks of Headrace, compared with other systems on the same machine."""
