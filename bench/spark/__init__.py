"""Headrace's Spark source and sinks compared with Spark's own Kafka connector."""
