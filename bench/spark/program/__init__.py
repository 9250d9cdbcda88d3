"""The program that is measured: Spark with one way to Kafka, doing what standard input asks for.

It runs in the environment of its system, and so imports nothing of the benchmark's but itself.
"""
