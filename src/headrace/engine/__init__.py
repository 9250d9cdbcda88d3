"""The stream engine: the logical plan of a job, the planner that makes a query of it, and operator state."""
