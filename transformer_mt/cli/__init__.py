"""The command line: parse, call, print, exit code. No logic."""
