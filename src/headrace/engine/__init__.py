"""The stream engine: a logical plan of what a job computes, and the planner that makes a query of it."""
