"""Record batches as Arrow columns, and columns as record batches: compiled, and without any I/O."""
