"""Plots of runs and attention, and the report of a run."""
