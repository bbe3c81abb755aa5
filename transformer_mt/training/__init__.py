"""Loss, optimizer, training step, training loop, and runs from their configuration."""
