"""Queues compared: messages that many workers acknowledge one by one."""
