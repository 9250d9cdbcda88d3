"""The broker: topics, produce and fetch, groups, transactions, and the server that speaks for them."""
