"""Change data capture compared with Debezium Engine: snapshot, changes, latency, memory, start-up."""
