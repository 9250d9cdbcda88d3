"""Authentication (SASL, TLS certificates) and authorization (ACLs) of the broker."""
