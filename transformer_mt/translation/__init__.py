"""From lines to lines: search, batching of lines, export to other runtimes."""
