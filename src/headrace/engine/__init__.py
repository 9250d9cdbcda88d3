"""The stream engine: what the operators of a job are executed by."""
