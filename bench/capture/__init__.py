"""Change data capture beside Debezium Engine: snapshot, changes, latency, memory, start-up."""
