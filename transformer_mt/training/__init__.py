"""Loss, optimizer, training step, the loop, and runs from their configuration."""
