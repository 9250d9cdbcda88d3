"""Kafka's wire format at the edge of bytes: no sockets, no files, no clocks."""
