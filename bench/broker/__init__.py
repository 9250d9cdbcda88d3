"""The broker beside Apache Kafka, NATS JetStream and Redis Streams: `python -m bench.broker`."""
