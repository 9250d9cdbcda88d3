"""The broker compared with Apache Kafka, NATS JetStream and Redis Streams: `python -m bench.broker`."""
