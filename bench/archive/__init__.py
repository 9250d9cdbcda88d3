"""Benchmarks of tiered storage: reads from the archive, and what uploads cost producers."""
