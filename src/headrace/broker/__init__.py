"""The broker: topics, groups, transactions, request handlers, and the server."""
