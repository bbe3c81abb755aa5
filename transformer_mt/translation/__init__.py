"""Search, lines to lines, scores of given translations, export to other runtimes."""
