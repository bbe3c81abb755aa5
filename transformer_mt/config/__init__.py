"""All configuration: the keys, and how they are read, explained and listed."""
