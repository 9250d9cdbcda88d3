"""The narrow raw client: what the Kafka protocol offers and librdkafka does not."""
