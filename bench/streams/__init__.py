"""Windows, joins and views, from JSON in the log to rows in the log, beside other systems of Python's."""
