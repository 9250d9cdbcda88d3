"""Benchmarks: Headrace beside the systems it is compared with, on the machine at hand."""
