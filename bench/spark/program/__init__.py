"""The measured program: Spark with one way to access Kafka, which runs the actions on standard input.

It runs in the environment of its system, and imports nothing else of the benchmark.
"""
