"""Plots of runs, recipes and attention, and the report of a run."""
