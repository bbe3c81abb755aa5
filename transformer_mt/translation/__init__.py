"""Search, translation of lines, scores of given translations, export to other runtimes."""
