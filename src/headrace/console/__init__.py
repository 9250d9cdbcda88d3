"""The web console: one page for the topics, groups, queues, jobs and views of a cluster."""
