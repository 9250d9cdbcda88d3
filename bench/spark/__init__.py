"""Spark on the log: Headrace's source and sinks beside Spark's own Kafka connector."""
