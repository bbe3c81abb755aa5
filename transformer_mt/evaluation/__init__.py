"""Scores of hypotheses against references, comparison of two systems."""
