"""Train, run and score the Transformer of "Attention Is All You Need" on German-English."""

__version__ = "0.1.0"
