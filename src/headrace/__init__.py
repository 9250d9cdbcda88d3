"""Headrace: a log that speaks the Kafka protocol, and stream processing on Spark, for Python."""
