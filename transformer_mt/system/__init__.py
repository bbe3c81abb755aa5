"""The machine: devices, files, streams of lines, messages."""
