"""A Kafka client for what librdkafka does not offer."""
