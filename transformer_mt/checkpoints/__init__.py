"""Checkpoints: save, verify, load, prune, average."""
