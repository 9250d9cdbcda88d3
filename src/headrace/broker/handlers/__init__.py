"""Request handlers, a module for each family of Kafka's APIs. Each handler says which versions it serves."""
