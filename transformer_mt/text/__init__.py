"""From parallel corpora to batches of ids."""
