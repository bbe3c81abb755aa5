"""From ids to logits: the Transformer, and the kernels that make it fast on CPUs."""
