"""Request handlers: one module per Kafka API, named after it."""
