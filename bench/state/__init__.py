"""The cost of a batch by the number of keys that an operator keeps."""
