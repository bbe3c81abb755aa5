"""Hypotheses and references to scores; one system against another; perplexity."""
