"""How fast rows reach tables and caches, beside what one would write by hand."""
