"""Windows, joins and views, from JSON in the log to rows in the log, compared with other Python systems."""
